"""The file of samples, and the picture made of it."""

from tests.soak.plot import draw
from tests.soak.samples import Sample, from_csv, to_csv

SAMPLES = [
    Sample(seconds=i * 10.0, program=p, rss=50_000 + i, anonymous=20_000, threads=3, descriptors=20, tasks=t, entries=e)
    for i in range(4)
    for p, t, e in (("control-plane", 31, 4), ("node-1/arbiter", None, None))
]


def test_samples_are_read_as_they_were_written() -> None:
    assert from_csv(to_csv(SAMPLES)) == SAMPLES


def test_the_picture_names_the_programs_and_is_the_same_for_equal_samples() -> None:
    picture = draw(SAMPLES, warm_up=10)
    assert b"node-1/arbiter" in picture
    assert draw(SAMPLES, warm_up=10) == picture
