"""What images made for gpu-manager expect on their node: ``/etc/vcuda`` and its registration service."""
