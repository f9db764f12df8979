"""Names with a typo, and names that only look like ours."""

import pytest

from fractile.dialects.near import misspelt, nearest
from fractile.dialects.table import RESOURCES
from tests.builders import container, pod


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("aliyun.com/gpu-memory", "aliyun.com/gpu-mem"),
        ("aliyun.com/gpumem", "aliyun.com/gpu-mem"),
        ("aliyun.com/gpu_mem", "aliyun.com/gpu-mem"),
        ("aliyun.com/GPU-mem", "aliyun.com/gpu-mem"),
        ("alyun.com/gpu-mem", "aliyun.com/gpu-mem"),
        ("aliyun.cn/gpu-count", "aliyun.com/gpu-count"),
        ("nvidia.com/gpucore", "nvidia.com/gpucores"),
        ("nvidia.com/gpu-mem", "nvidia.com/gpumem"),
        ("nvidia.com/gpumem-percent", "nvidia.com/gpumem-percentage"),
        ("nvidia.com/gpus", "nvidia.com/gpu"),
        ("nvida.com/gpu", "nvidia.com/gpu"),
        ("tencent.com/vcuda-cores", "tencent.com/vcuda-core"),
        ("tencent.com/vcuda-mem", "tencent.com/vcuda-memory"),
        ("tencents.com/vcuda-memory", "tencent.com/vcuda-memory"),
        ("fractile.dev/gpus", "fractile.dev/gpu"),
        ("fractal.dev/device", "fractile.dev/device"),
        ("classes.fractile.dev/a100", "class.fractile.dev/a100"),
    ],
)
def test_a_name_with_a_typo_is_taken_for_the_nearest(written: str, meant: str) -> None:
    assert nearest(written) == meant


@pytest.mark.parametrize(
    "written",
    [
        "nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared", "nvidia.com/pgpu", "nvidia.com/vgpu", "nvidia.com/hostdev",
        "nvidia.com/GA102GL_A10", "aliyun.com/eni", "aliyun.com/gpu", "aliyun.com/gpu-core.percentage", "amd.com/gpu",
        "gpu.intel.com/i915", "example.com/foo", "volcano.sh/vgpu-number", "tke.cloud.tencent.com/qgpu-core",
        "rdma/hca", "ephemeral-storage", "hugepages-2Mi", "cpu", "/", "a/b/c", "nvidia.com/" + "gpu" * 99,
    ],
)  # fmt: skip
def test_a_name_that_others_use_is_left_alone(written: str) -> None:
    assert nearest(written) == ""


def test_no_name_of_ours_is_a_typo() -> None:
    made = pod("p", container(limits=dict.fromkeys((*RESOURCES, "class.fractile.dev/x"), "1")))
    assert list(misspelt(made)) == []


def test_an_annotation_that_is_asked_for_as_a_resource_is_said_to_be_one() -> None:
    made = pod("p", container(limits={"tencent.com/vcuda-core-limit": "80"}))
    (said,) = misspelt(made)
    assert said == (
        "container main asks for tencent.com/vcuda-core-limit: that is an annotation of the pod, not a resource"
    )


def test_of_very_many_names_only_some_are_compared() -> None:
    made = pod("p", container(limits={f"nvidia.com/gpus{i}": "1" for i in range(2000)}))
    assert len(list(misspelt(made))) <= 16
