"""Keys that open only what they sealed, and key-encryption keys as they are written."""

from __future__ import annotations

import base64

import pytest

from harness_common.crypto.aead import CannotDecrypt, Cipher, KeyMissing, new_key
from harness_common.crypto.keks import KeyEncryptionKeys, make_kek, parse_keks

SAME = base64.b64encode(bytes(range(32))).decode()


def test_what_is_sealed_opens_and_is_never_the_same_twice():
    cipher = Cipher(new_key())
    a, b = (cipher.seal(b"plain", b"here") for _ in range(2))
    assert a != b
    assert cipher.open(a, b"here") == cipher.open(b, b"here") == b"plain"


def test_one_changed_bit_anywhere_opens_nothing():
    cipher = Cipher(new_key())
    sealed = cipher.seal(b"plain", b"here")
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(CannotDecrypt):
            cipher.open(bytes(changed), b"here")
    for cut in range(len(sealed)):
        with pytest.raises(CannotDecrypt):
            cipher.open(sealed[:cut], b"here")


def test_another_place_or_another_key_opens_nothing():
    cipher = Cipher(new_key())
    sealed = cipher.seal(b"plain", b"here")
    with pytest.raises(CannotDecrypt):
        cipher.open(sealed, b"there")
    with pytest.raises(CannotDecrypt):
        Cipher(new_key()).open(sealed, b"here")


def test_the_first_key_encryption_key_is_the_current_one():
    first, second = make_kek("k2"), make_kek("k1")
    for text in (f"{first},{second}", f"# ours\n{first}\n{second}\n"):
        keks = parse_keks(text)
        assert keks.current == "k2"
        assert list(keks.ciphers) == ["k2", "k1"]
        assert keks.get("k1") is keks.ciphers["k1"]
    # As a URL-safe key is written.
    key = base64.urlsafe_b64encode(b"\xfb" * 32).decode()
    assert parse_keks(f"a:{key}").current == "a"


def test_a_missing_key_says_which_and_what_to_do():
    with pytest.raises(KeyMissing, match="HARNESS_SECRETS__KEK"):
        KeyEncryptionKeys().require_current()
    with pytest.raises(KeyMissing, match=r"'old'.*has k1.*HARNESS_SECRETS__KEK"):
        parse_keks(make_kek("k1")).get("old")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("abc", "not written as"),
        ("k 1:AAAA", "not written as"),
        ("k1:%%%%", "not base64"),
        ("k1:" + base64.b64encode(b"too short to be a key").decode(), "has 21 bytes; it needs 32"),
        (f"a:{SAME},a:{SAME}", "twice"),
    ],
)
def test_what_is_no_key_is_refused_without_being_shown(text, why):
    with pytest.raises(ValueError, match=why) as caught:
        parse_keks(text)
    secret = text.partition(":")[2]
    assert not secret or secret not in str(caught.value)
