"""TLS on the link and for clients, and who is let in."""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.live.lab import Client, End, Pair, Proxy, Writer, stamp, wait_until
from tests.support.ports import free_port

QUIET: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


class Authority:
    """Certificates made with openssl(1): self-signed ones, or signed by an authority."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], check=True, cwd=self.folder, timeout=20, **QUIET)

    def own(self, name: str, *more: str) -> None:
        """NAME.pem and NAME.key; signed by itself."""
        words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        words += ["-days", "30", "-subj", f"/CN={name}", "-keyout", f"{name}.key"]
        self._openssl(*words, "-out", f"{name}.pem", *more)

    def signed(self, name: str, authority: str) -> None:
        words = ["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        words += ["-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr"]
        words += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        self._openssl(*words)
        words = ["x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem"]
        words += ["-CAkey", f"{authority}.key", "-CAcreateserial", "-days", "30"]
        self._openssl(*words, "-copy_extensions", "copy", "-out", f"{name}.pem")

    def link(self, name: str, peer: str) -> list[str]:
        words = {"certificate": f"{name}.pem", "key": f"{name}.key", "peer": f"{peer}.pem"}
        named = [(f"--tls-{what}", str(self.folder / file)) for what, file in words.items()]
        return [word for pair in named for word in pair]

    def client_folder(self, name: str) -> Path:
        """What libnbd and QEMU expect: the three files under their names."""
        folder = self.folder / f"of-{name}"
        folder.mkdir()
        authorities = [self.folder / f"{each}.pem" for each in ("ca", "stranger")]
        (folder / "ca-cert.pem").write_bytes(b"".join(each.read_bytes() for each in authorities))
        (folder / "client-cert.pem").write_bytes((self.folder / f"{name}.pem").read_bytes())
        (folder / "client-key.pem").write_bytes((self.folder / f"{name}.key").read_bytes())
        return folder


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    authority = Authority(tmp_path / "pki")
    for name in ("p", "s", "stranger"):
        authority.own(name)
    return authority


def _secure(pair: Pair, authority: Authority) -> None:
    pair.primary.options = authority.link("p", "s")
    pair.secondary.options = authority.link("s", "p")


def _log(end: End) -> str:
    return (end.folder / "log").read_text()


def test_the_link_is_encrypted_and_survives_cuts(pair: Pair, authority: Authority) -> None:
    _secure(pair, authority)
    proxy = Proxy(pair.secondary.link_port)
    proxy.seen = bytearray()
    pair.primary.peer = f"127.0.0.1:{proxy.port}"
    pair.start()
    writer = Writer(pair.primary, 1024)
    writer.start()
    for _ in range(3):
        time.sleep(0.3)
        proxy.cut()
        proxy.heal()
        pair.wait_in_sync()
    proxy.flips = 1
    wait_until(lambda: proxy.flips == 0, "a record to corrupt")
    pair.wait_in_sync()
    writer.finish()
    assert writer.errors == []
    pair.assert_equal()
    writer.check(pair.secondary.bytes())
    # Neither the frames' magic nor a block's stamp is seen on the way.
    assert len(proxy.seen) > 1 << 20
    assert b"MLF1" not in proxy.seen
    assert struct.pack("<Q", 7) * 2 not in proxy.seen
    assert "TLS" in _log(pair.secondary)
    proxy.close()


def test_certificates_of_one_authority_are_accepted(pair: Pair, authority: Authority) -> None:
    authority.own("ca")
    for name in ("one", "two"):
        authority.signed(name, "ca")
    pair.primary.options = authority.link("one", "ca")
    pair.secondary.options = authority.link("two", "ca")
    pair.start()
    with Client(pair.primary) as client:
        assert client.write(0, stamp(0, 1)) == 0
    pair.assert_equal()


@pytest.mark.parametrize("wrong", ["primary", "secondary", "plain primary", "plain secondary"])
def test_another_certificate_or_none_is_refused(
    pair: Pair, authority: Authority, wrong: str
) -> None:
    _secure(pair, authority)
    end = pair.primary if "primary" in wrong else pair.secondary
    peer = "s" if "primary" in wrong else "p"
    end.options = [] if "plain" in wrong else authority.link("stranger", peer)
    pair.secondary.start()
    pair.primary.start()
    time.sleep(2)
    assert not pair.primary.is_state("in-sync")
    assert pair.secondary.bytes().count(0) == 8 << 20
    status = pair.secondary.status()
    assert status is not None and status["state"] == "empty"
    if "plain" not in wrong:
        assert "TLS: invalid peer certificate" in _log(pair.primary) + _log(pair.secondary)
    # The same failure is reported once, not for each attempt.
    assert len(_log(pair.primary).splitlines()) < 20


def test_renewed_certificates_count_without_a_restart(pair: Pair, authority: Authority) -> None:
    _secure(pair, authority)
    pair.start()
    for name in ("p", "s"):
        authority.own(name)
    assert pair.primary.process and pair.secondary.process
    before = pair.primary.process.pid, pair.secondary.process.pid
    pair.secondary.kill()
    pair.secondary.start()
    pair.wait_in_sync()
    assert pair.primary.process.pid == before[0]


@pytest.mark.parametrize("name", ["p.pem", "s.pem"])
def test_a_certificate_that_is_damaged_later_is_in_the_status(
    pair: Pair, authority: Authority, name: str
) -> None:
    _secure(pair, authority)
    pair.start()
    certificate = authority.folder / name
    kept = certificate.read_text()
    certificate.write_text(kept[:-40])
    pair.secondary.kill()
    pair.secondary.options = []
    pair.secondary.start()
    told = f"TLS of the link: {certificate}"
    wait_until(lambda: told in (pair.primary.status() or {})["reason"], "the reason", 20)
    assert "it is cut off" in (pair.primary.status() or {})["reason"]
    certificate.write_text(kept)
    pair.secondary.kill()
    pair.secondary.options = authority.link("s", "p")
    pair.secondary.start()
    pair.wait_in_sync()
    assert (pair.primary.status() or {})["reason"] == ""


def test_connections_that_say_nothing_do_not_keep_the_other_end_out(
    pair: Pair, authority: Authority
) -> None:
    _secure(pair, authority)
    proxy = Proxy(pair.secondary.link_port)
    pair.primary.peer = f"127.0.0.1:{proxy.port}"
    pair.start()
    address = ("127.0.0.1", pair.secondary.link_port)
    with contextlib.ExitStack() as stack:
        proxy.cut()
        wait_until(lambda: pair.primary.is_state("holding"), "the cut")
        for _ in range(300):
            stack.enter_context(socket.create_connection(address, timeout=5))
        proxy.heal()
        pair.wait_in_sync()
    status = pair.primary.status()
    assert status is not None and status["left_sync"] == 0
    proxy.close()


def _served(pair: Pair, authority: Authority) -> int:
    """Clients' TLS at the primary; the port."""
    authority.own("ca")
    for name in ("server", "friend"):
        authority.signed(name, "ca")
    for name in ("lone", "enemy"):
        authority.signed(name, "stranger")
    allowed = authority.folder / "clients.pem"
    certificates = [authority.folder / f"{name}.pem" for name in ("ca", "lone")]
    allowed.write_bytes(b"".join(each.read_bytes() for each in certificates))
    port = free_port()
    pair.primary.options = ["--nbd", f"127.0.0.1:{port}", "--nbd-clients", str(allowed)]
    for what, file in (("certificate", "server.pem"), ("key", "server.key")):
        pair.primary.options += [f"--nbd-{what}", str(authority.folder / file)]
    pair.start()
    return port


def _qemu_io(port: int, folder: Path | None) -> subprocess.CompletedProcess[str]:
    image = f"driver=nbd,server.type=inet,server.host=127.0.0.1,server.port={port}"
    words = ["qemu-io", "-c", "write -P 7 0 64k", "-c", "read -P 7 0 64k", "-c", "flush"]
    if folder:
        words += ["--object", f"tls-creds-x509,id=t,endpoint=client,dir={folder}"]
        image += ",tls-creds=t"
    return subprocess.run(
        [*words, "--image-opts", image], capture_output=True, text=True, timeout=30
    )


def test_clients_need_a_certificate_over_tcp(pair: Pair, authority: Authority) -> None:
    port = _served(pair, authority)
    for name in ("friend", "lone"):
        done = _qemu_io(port, authority.client_folder(name))
        assert done.returncode == 0 and "verification failed" not in done.stdout, done.stderr
    pair.assert_equal()
    uri = f"nbds://127.0.0.1:{port}/?tls-certificates={authority.folder / 'of-friend'}"
    shown = subprocess.run(["nbdinfo", uri], capture_output=True, text=True, timeout=30)
    assert "newstyle-fixed with TLS, using structured packets" in shown.stdout, shown.stderr
    done = _qemu_io(port, authority.client_folder("enemy"))
    assert done.returncode == 1
    assert "client: TLS: invalid peer certificate" in _log(pair.primary)
    refused = _qemu_io(port, None)
    assert refused.returncode == 1 and "TLS" in refused.stderr
    # The unix socket is protected by its permissions.
    with Client(pair.primary) as client:
        assert client.write(0, stamp(0, 1)) == 0


def _option(code: int, data: bytes = b"") -> bytes:
    return struct.pack(">8sII", b"IHAVEOPT", code, len(data)) + data


@pytest.mark.parametrize("code", [1, 3, 6, 7, 8, 9, 10])
def test_nothing_is_told_before_tls(pair: Pair, authority: Authority, code: int) -> None:
    port = _served(pair, authority)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        plain.sendall(struct.pack(">I", 3) + _option(code, bytes(6) if code in (6, 7) else b""))
        answer = plain.makefile("rb").read(18 + 20) if code != 1 else plain.recv(100)
        if code == 1:
            # This option has no way to refuse.
            assert len(answer) == 18 and plain.recv(10) == b""
        else:
            assert struct.unpack(">QIII", answer[18:])[1:3] == (code, (1 << 31) + 5)


def test_what_is_sent_before_tls_does_not_count(pair: Pair, authority: Authority) -> None:
    port = _served(pair, authority)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        plain.sendall(struct.pack(">I", 3) + _option(5) + _option(7, bytes(6)))
        answer = b""
        while piece := plain.recv(100):
            answer += piece
    assert len(answer) == 18
    assert "data before the start of TLS" in _log(pair.primary)


def test_clients_may_come_from_listed_addresses_only(pair: Pair) -> None:
    port = free_port()
    pair.primary.options = ["--nbd", f"0.0.0.0:{port}", "--nbd-allow", "127.0.0.2"]
    pair.primary.options += ["--nbd-allow", "127.0.1.0/24"]
    pair.start()
    for source, is_allowed in (("127.0.0.2", 1), ("127.0.1.9", 1), ("127.0.0.1", 0)):
        with socket.create_connection(
            ("127.0.0.1", port), timeout=10, source_address=(source, 0)
        ) as client:
            assert len(client.recv(18)) == 18 * is_allowed
    assert "connection from 127.0.0.1 refused" in _log(pair.primary)


def test_an_open_socket_without_protection_is_refused(pair: Pair, program: Path) -> None:
    end = pair.primary
    words = [str(program), "run", "--image", str(end.image), "--state", str(end.state)]
    words += ["--control", str(end.control), "--nbd", f"0.0.0.0:{free_port()}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    assert "give --nbd-clients or --nbd-allow" in done.stderr


@pytest.mark.parametrize("missing", ["certificate", "key", "peer"])
def test_a_missing_credential_is_named_at_the_start(
    pair: Pair, authority: Authority, program: Path, missing: str
) -> None:
    end = pair.primary
    words = [str(program), "run", "--image", str(end.image), "--state", str(end.state)]
    words += ["--control", str(end.control), *authority.link("p", "s")]
    at = words.index(f"--tls-{missing}")
    words[at + 1] = "/nowhere/file"
    done = subprocess.run(words, capture_output=True, text=True, timeout=20)
    assert done.returncode == 1 and "/nowhere/file: No such file" in done.stderr
