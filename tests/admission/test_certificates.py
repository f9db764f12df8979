"""When certificates are renewed; a client with the published bundle trusts every certificate that is served."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache

import msgspec
import pytest
from cryptography import x509
from cryptography.x509 import verification
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fractile.admission.certificates import (
    BACKDATED,
    CA_LIFE,
    MOST_AUTHORITIES,
    SERVING_LIFE,
    Material,
    renewed,
)

T0 = datetime(2026, 11, 21, tzinfo=UTC)
DAY = timedelta(days=1)
DUE = T0 - BACKDATED + (SERVING_LIFE + BACKDATED) * 2 / 3
NAMES = ("fractile-webhook.fractile-system.svc", "127.0.0.1")


@lru_cache
def first() -> Material:
    return renewed(Material(), NAMES, now=T0, published=False)


def at(material: Material, now: datetime, *, published: bool = True, names: tuple[str, ...] = NAMES) -> Material:
    return renewed(material, names, now=now, published=published)


def authorities(material: Material) -> int:
    return len(x509.load_pem_x509_certificates(material.bundle))


def believed(bundle: bytes, cert: bytes, now: datetime) -> bool:
    """What a TLS client says that trusts the bundle and calls us by our name."""
    store = verification.Store(x509.load_pem_x509_certificates(bundle))
    builder = verification.PolicyBuilder().store(store).time(now)
    try:
        builder.build_server_verifier(x509.DNSName(NAMES[0])).verify(x509.load_pem_x509_certificate(cert), [])
    except verification.VerificationError:
        return False
    return True


def test_the_first_material_is_believed_for_its_names() -> None:
    cert = x509.load_pem_x509_certificate(first().cert)
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(n.value) for n in names] == list(NAMES)
    assert believed(first().bundle, first().cert, T0)
    assert believed(first().bundle, first().cert, T0 - BACKDATED + timedelta(hours=1)), "for a client that is behind"


def test_nothing_is_made_anew_before_its_time() -> None:
    assert at(first(), T0) is not first()
    assert at(first(), T0) == first()
    assert at(first(), DUE - timedelta(seconds=1)) == first()


def test_the_serving_certificate_is_renewed_at_two_thirds_of_its_life_by_the_same_authority() -> None:
    later = at(first(), DUE)
    assert later.cert != first().cert
    assert (later.bundle, later.ca_key) == (first().bundle, first().ca_key)


def test_a_new_authority_is_published_before_it_signs() -> None:
    now = T0 + CA_LIFE * 2 / 3 + DAY
    old = at(at(first(), T0 + 61 * DAY), T0 + 122 * DAY)
    old = at(old, T0 + 183 * DAY)
    both = at(old, now)
    assert authorities(both) == 2
    assert believed(old.bundle, both.cert, now), "nobody knows the new one yet"
    assert at(both, now, published=False) == both
    new = at(both, now, published=True)
    assert new.bundle == both.bundle
    assert new.cert != both.cert
    assert not believed(old.bundle, new.cert, now)
    gone = at(at(at(new, now + 62 * DAY), now + 110 * DAY), T0 + CA_LIFE + DAY)
    assert authorities(gone) == 1, "the old one has expired"


def test_a_program_that_was_stopped_when_both_fell_due_is_believed_by_those_who_know_the_old_bundle() -> None:
    now = T0 + CA_LIFE - 30 * DAY
    after = at(first(), now)
    assert authorities(after) == 2
    assert believed(first().bundle, after.cert, now)


def test_other_names_are_certified_when_the_authority_is_known() -> None:
    other = ("elsewhere.svc",)
    assert at(first(), T0, names=other, published=False) == first()
    assert at(first(), T0, names=other).cert != first().cert


@pytest.mark.parametrize("days", [-4000, -2, 100, 400, 4000])
def test_after_a_jump_of_the_clock_there_is_something_usable_at_once(days: int) -> None:
    now = T0 + days * DAY
    after = at(first(), now, published=False)
    assert believed(after.bundle, after.cert, now)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param({"bundle": b"nonsense"}, id="the bundle"),
        pytest.param({"bundle": b""}, id="no bundle"),
        pytest.param({"ca_key": b"nonsense"}, id="the authority's key"),
        pytest.param({"cert": b"nonsense"}, id="the certificate"),
        pytest.param({"key": b""}, id="no key"),
    ],
)
def test_a_damaged_secret_is_mended_at_once(damage: dict[str, bytes]) -> None:
    after = at(msgspec.structs.replace(first(), **damage), T0, published=False)
    assert believed(after.bundle, after.cert, T0)


def test_keys_of_somebody_else_are_not_taken() -> None:
    other = renewed(Material(), NAMES, now=T0, published=False)
    mixed = msgspec.structs.replace(first(), key=other.key)
    after = at(mixed, T0, published=False)
    assert after.ca_key == first().ca_key, "the authority is whole"
    assert after.cert != first().cert
    swapped = at(msgspec.structs.replace(first(), ca_key=other.ca_key), T0)
    assert swapped.cert == first().cert, "what the API server believes is served on"
    assert swapped.bundle.endswith(first().bundle)
    assert authorities(swapped) == 2


class Rotation(RuleBasedStateMachine):
    """Time passes, in steps of any length, forward as clocks go; an API server learns the bundle late, but in time.

    It must believe what is served whenever the step was shorter than what is left between a renewal's time and the end.
    """

    @initialize()
    def begin(self) -> None:
        self.now = T0
        self.material = first()
        self.known = first().bundle

    @rule(days=st.integers(0, 29))
    def time_passes(self, days: int) -> None:
        self.now += days * DAY
        self.material = renewed(self.material, NAMES, now=self.now, published=self.known == self.material.bundle)

    @rule()
    def the_api_server_learns(self) -> None:
        self.known = self.material.bundle

    @rule()
    def another_replica_looks(self) -> None:
        again = renewed(self.material, NAMES, now=self.now, published=False)
        assert again == self.material, "what one has renewed is not renewed by the other"

    @invariant()
    def what_is_served_is_believed(self) -> None:
        assert believed(self.material.bundle, self.material.cert, self.now)
        assert authorities(self.material) <= MOST_AUTHORITIES


TestRotation = Rotation.TestCase
TestRotation.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_through_years_of_renewals_an_api_server_that_learns_within_a_day_always_believes() -> None:
    now, material, known = T0, first(), first().bundle
    published = True
    for _ in range(3 * 365):
        now += DAY
        material = renewed(material, NAMES, now=now, published=published)
        assert believed(known, material.cert, now), "the bundle of yesterday"
        published = known == material.bundle
        known = material.bundle
