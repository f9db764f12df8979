"""Every row of docs/operate/security.md about who may write what is tried by somebody who may not."""

import importlib
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[3] / "docs" / "operate" / "security.md").read_text()

# The beginning of a row -> the attempts, as module::test.
ATTEMPTS = {
    "annotation `fractile.dev/placement`": (
        "test_security_tenants::test_nor_is_it_given_that_later_or_robbed_of_it",
        "test_security_tenants::test_no_subresource_of_a_pod_is_a_way_around",
        "test_security_tenants::test_ephemeral_containers_are_no_way_around",
        "test_security_tenants::test_a_binding_carries_no_forged_placement",
        "test_security_agent::test_of_other_pods_it_changes_and_deletes_nothing",
    ),
    "annotations `fractile.dev/kubelet-choice`": (
        "test_security_tenants::test_a_pod_is_not_created_with_what_fractile_writes",
        "test_security_tenants::test_an_agent_writes_no_placement_and_speaks_of_pods_of_its_node_only",
    ),
    "images, labels, other annotations": (
        "test_security_agent::test_of_a_pod_of_its_node_it_changes_nothing_else",
        "test_security_agent::test_of_other_pods_it_changes_and_deletes_nothing",
        "test_security_agent::test_nor_pods_of_its_own_namespace_on_other_nodes",
    ),
    "the length of what an agent writes": (
        "test_security_agent::test_it_writes_no_annotation_that_is_longer_than_it_can_need_to_be",
        "test_device_policy::test_an_agent_puts_nothing_of_any_length_into_the_metadata_of_its_devices",
    ),
    "deletion of a pod": (
        "test_security_agent::test_of_other_pods_it_changes_and_deletes_nothing",
        "test_security_agent::test_it_evicts_nobody_by_the_eviction_api",
        "test_security_agent::test_a_token_without_a_node_changes_and_deletes_no_pod",
    ),
    "one of Fractile's annotations in a pod template": (
        "test_security_tenants::test_controllers_make_no_pod_from_a_template_with_a_placement",
    ),
    "annotations of other tools": (
        "test_security_tenants::test_annotations_of_other_tools_may_be_written_by_whoever_owns_the_pod",
    ),
    "wishes": ("test_security_tenants::test_a_bound_pod_is_not_given_more_by_its_owner",),
    "a Binding": (
        "test_leader_policy::test_only_the_leader_of_the_moment_binds",
        "test_security_tenants::test_a_binding_carries_no_forged_placement",
    ),
    "`ExtendedResource` and its status": (
        "test_device_policy::test_nobody_else_forges_a_status",
        "test_device_policy::test_the_agent_of_another_node_changes_nothing",
        "test_device_policy::test_the_control_plane_says_whether_a_device_is_lost_and_nothing_else",
        "test_device_policy::test_no_card_has_a_second_object",
        "test_device_policy::test_a_card_moves_to_no_other_node_while_its_object_exists",
        "test_device_policy::test_an_object_cannot_be_made_to_outlive_its_deletion",
    ),
    "`ResourceClass`": (
        "test_security_tenants::test_what_the_owner_of_a_namespace_has_no_right_to",
        "test_security_agent::test_it_gets_hold_of_nothing_else",
    ),
    "status of a `ResourceClass`": ("test_security_tenants::test_what_the_owner_of_a_namespace_has_no_right_to",),
    "`class.fractile.dev/...` without slots": (
        "test_security_tenants::test_the_owner_of_a_namespace_gives_no_class_without_its_slots",
    ),
    "Lease, quotas": (
        "test_security_tenants::test_what_the_owner_of_a_namespace_has_no_right_to",
        "test_security_agent::test_it_gets_hold_of_nothing_else",
    ),
    "type of the Secret `fractile-webhook`": (
        "test_webhook_secret::test_whoever_has_the_control_planes_token_is_given_no_token_of_another_account",
        "test_webhook_secret::test_the_control_plane_makes_no_other_secret",
        "test_webhook_secret::test_the_control_plane_deletes_and_lists_no_secret",
    ),
    "labels of nodes": (
        "test_security_tenants::test_a_kubelet_labels_no_other_node",
        "test_security_tenants::test_what_the_owner_of_a_namespace_has_no_right_to",
        "test_security_agent::test_it_gets_hold_of_nothing_else",
    ),
    "annotation `fractile.dev/isolation": (
        "tests.agent.limits.test_enforce::test_isolation_is_off_only_by_an_administrators_word",
    ),
    "in a pod with GPUs: a mount, device or `terminationMessagePath`": (
        "test_container_policy::test_nothing_is_mounted_where_the_library_and_its_limits_are",
        "test_container_policy::test_an_ephemeral_container_is_judged_too",
    ),
    "`NVIDIA_VISIBLE_DEVICES` in the `env`": (
        "test_container_policy::test_a_pod_does_not_name_its_cards_itself",
        "test_container_policy::test_a_container_that_asks_for_no_gpu_is_not_taken_for_an_old_image",
    ),
}


def rows() -> list[str]:
    lines = PAGE[PAGE.index("| object | who writes it |") :].splitlines()[2:]
    end = next(n for n, line in enumerate(lines) if not line.startswith("|"))
    return [line.strip("| ") for line in lines[:end]]


def test_every_row_has_its_attempt() -> None:
    found = rows()
    lacking = [row for row in found if not any(row.startswith(key) for key in ATTEMPTS)]
    assert lacking == []
    assert [key for key in ATTEMPTS if not any(row.startswith(key) for row in found)] == []


@pytest.mark.parametrize("attempt", sorted({a for some in ATTEMPTS.values() for a in some}))
def test_the_attempt_is_a_test(attempt: str) -> None:
    module, name = attempt.split("::")
    found = importlib.import_module(module if "." in module else f"tests.contract.policies.{module}")
    assert callable(getattr(found, name))


def test_every_policy_of_the_page_has_an_attempt() -> None:
    named = set(re.findall(r"`([a-z-]+)\.fractile\.dev`", "\n".join(rows())))
    assert named >= {"placement", "agents", "devices", "class", "leader", "mounts", "visible-devices", "webhook-secret"}
