#!/usr/bin/env python3
"""Computes the vectors of sealed datagrams without Apus, from docs/wire.md and docs/protocol.md.

    vectors.py          compares them with vectors.json
    vectors.py --write  writes vectors.json
"""

import hashlib
import hmac
import json
import pathlib
import sys

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

FILE = pathlib.Path(__file__).with_name("vectors.json")
SUITES = {1: (AESGCM, 16), 2: (AESGCM, 32), 3: (ChaCha20Poly1305, 32)}
PATH_SECRET = bytes(range(32))
EXPORTED = bytes(range(32, 64))
CONTEXT = b"\xaa" * 32
ID = 0x040000123456789A


def expand(secret, label, context, length):
    """HKDF-Expand-Label of TLS 1.3 with another prefix. No output is longer than one hash."""
    label = b"apus2 " + label.encode()
    info = length.to_bytes(2, "big") + bytes([len(label)]) + label + bytes([len(context)]) + context
    return hmac.digest(secret, info + b"\x01", hashlib.sha256)[:length]


def direction(path_secret, sender, epoch):
    secret = expand(path_secret, sender, b"", 32)
    for _ in range(epoch):
        secret = expand(secret, "update", b"", 32)
    return secret


def keys(secret, suite):
    return expand(secret, "key", b"", SUITES[suite][1]), expand(secret, "iv", b"", 12)


def refreshed(path_secret, exported):
    return hmac.digest(expand(path_secret, "refresh", b"", 32), exported, hashlib.sha256)


def datagram(path_secret, suite, sender, epoch, level, counter, payload, header):
    key, iv = keys(direction(path_secret, sender, epoch), suite)
    marks = bytes([0, 0, 2, epoch % 4 << 6 | len(header) // 4])
    lane = level * 2 + bool(header)
    number = (lane << 60 | counter).to_bytes(8, "big")
    nonce = bytes(a ^ b for a, b in zip(iv, marks + number))
    sealed = SUITES[suite][0](key).encrypt(nonce, payload + header, None)
    return marks + ID.to_bytes(8, "big") + number + sealed


def schedule(sender):
    epochs = []
    for epoch in range(3):
        secret = direction(PATH_SECRET, sender, epoch)
        epochs.append({str(suite): "".join(part.hex() for part in keys(secret, suite)) for suite in SUITES})
    return {"epochs": epochs, "confirmation": expand(PATH_SECRET, sender + " done", CONTEXT, 16).hex()}


def datagrams():
    packet, data = (b"\x11" * 28, b""), (b"\x22" * 16, b"\x33" * 56)
    cases = [(PATH_SECRET, suite, "client", 0, *case) for suite in SUITES for case in ((7, 1, *packet), (6, 2, *data))]
    cases.append((PATH_SECRET, 1, "server", 0, 0, 1, b"\x44" * 1000, b""))
    cases.append((PATH_SECRET, 1, "client", 0, 3, 1, b"\x55", b"\x66" * 124))
    cases.append((PATH_SECRET, 1, "client", 1, 7, 2, *packet))
    cases.append((PATH_SECRET, 1, "client", 1, 6, 2, *data))
    cases.append((refreshed(PATH_SECRET, EXPORTED), 1, "client", 0, 7, 1, *packet))
    names = ("path_secret", "suite", "sender", "epoch", "level", "counter", "payload", "header")
    for case in cases:
        fields = {name: value.hex() if isinstance(value, bytes) else value for name, value in zip(names, case)}
        bytes_ = datagram(*case)
        yield fields | {"datagram": bytes_.hex(), "hint": (b"\x00\x00\x03\x00" + bytes_[4:20]).hex()}


def vectors():
    return {
        "path_secret": PATH_SECRET.hex(),
        "context": CONTEXT.hex(),
        "id": f"{ID:016x}",
        "client": schedule("client"),
        "server": schedule("server"),
        "refresh": {"exported": EXPORTED.hex(), "path_secret": refreshed(PATH_SECRET, EXPORTED).hex()},
        "datagrams": list(datagrams()),
    }


if sys.argv[1:] == ["--write"]:
    FILE.write_text(json.dumps(vectors(), indent=1) + "\n")
elif json.loads(FILE.read_text()) != vectors():
    sys.exit(f"{FILE} differs from the formats")
