"""File system types of paths, found from lines of /proc/self/mountinfo on real machines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.system.safe_file import Mount, is_shared, kind_at, kind_of, parse_mountinfo

MOUNTINFO = rb"""22 28 0:20 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw
28 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw,errors=remount-ro
31 28 0:27 / /tmp rw,nosuid,nodev shared:16 - tmpfs tmpfs rw,size=16384k
40 28 0:35 /@home /home rw,relatime shared:20 - btrfs /dev/sdb1 rw,ssd,subvolid=257,subvol=/@home
41 28 0:40 / /net rw,relatime shared:21 - autofs systemd-1 rw,fd=52,pgrp=1,timeout=0,direct
42 41 0:61 / /net/data rw,relatime shared:22 - nfs4 filer:/vol/data rw,vers=4.2,hard,proto=tcp,addr=10.0.0.9
43 28 0:62 / /mnt/my\040disk\134x rw,relatime - cifs //nas/share rw,vers=3.1.1
44 28 0:63 / /mnt/ssh rw,nosuid,nodev,relatime - fuse.sshfs user@host: rw,user_id=1000
45 28 8:17 / /mnt/usb rw,nosuid,nodev - fuseblk /dev/sdb1 rw,user_id=0,allow_other
46 28 0:64 / /scratch rw shared:30 master:2 propagate_from:1 - lustre 10.0.0.1@o2ib:/fs rw,flock
47 28 8:2 /srv/jobs /net/data/local rw,relatime - ext4 /dev/sda2 rw
48 28 0:65 / /auto rw,relatime - autofs /etc/auto.home rw,fd=6,pgrp=9,timeout=300,direct
49 48 0:66 / /auto rw,relatime - nfs filer:/home rw,vers=3
50 28 0:67 / /var/lib/docker/overlay2/ab/merged rw - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w
51 28 0:68 / /gpfs/fs1 rw,relatime - gpfs fs1 rw
52 28 0:69 / /nethome rw - tmpfs tmpfs rw
broken line
53 28 0:70 /
"""
MOUNTS = parse_mountinfo(MOUNTINFO.splitlines())


@pytest.mark.parametrize(
    ("path", "device", "kind", "shared"),
    [
        ("/home/u/jobs", "0:52", "btrfs", False),  # the device of a subvolume is not the device of any mount
        ("/home", "0:35", "btrfs", False),
        ("/homes", "0:99", "ext4", False),
        ("/work", "8:2", "ext4", False),
        ("/", "8:2", "ext4", False),
        ("/tmp/x", "0:27", "tmpfs", False),
        ("/net/data/proj", "0:61", "nfs4", True),
        ("/net/data/proj", "0:77", "nfs4", True),  # a volume that the server has mounted below this path
        ("/nethome/u", "0:98", "tmpfs", False),
        ("/net/data/local", "8:2", "ext4", False),  # a bind mount of a local folder
        ("/mnt/my disk\\x/y", "0:97", "cifs", True),
        ("/mnt/my disk\\x", "0:62", "cifs", True),
        ("/mnt/ssh/y", "0:63", "fuse.sshfs", True),
        ("/mnt/usb/y", "8:17", "fuseblk", False),
        ("/scratch/u", "0:64", "lustre", True),
        ("/auto/u", "0:66", "nfs", True),
        # The file system covers its autofs mount, which is on an earlier line.
        ("/auto/u", "0:96", "nfs", True),
        ("/net", "0:40", "autofs", False),
        ("/var/lib/docker/overlay2/ab/merged/w", "0:67", "overlay", False),
        ("/gpfs/fs1/u", "0:68", "gpfs", True),
    ],
)
def test_finds_the_file_system_type_and_whether_it_is_shared(
    path: str, device: str, kind: str, shared: bool
) -> None:
    found = kind_at(path, device, MOUNTS)
    assert (found, is_shared(found)) == (kind, shared)


@pytest.mark.parametrize(
    ("kind", "shared"),
    [("nfs", True), ("smb3", True), ("9p", True), ("virtiofs", True), ("ceph", True), ("fuse", True),
     ("fuse.glusterfs", True), ("fuse.fuse-overlayfs", False), ("xfs", False), ("zfs", False), (None, False)],
)  # fmt: skip
def test_recognizes_shared_file_system_types(kind: str | None, shared: bool) -> None:
    assert is_shared(kind) is shared


def test_skips_malformed_mountinfo_lines() -> None:
    assert len(MOUNTS) == len(MOUNTINFO.splitlines()) - 2
    assert MOUNTS[6] == Mount("0:62", "/mnt/my disk\\x", "cifs")
    assert kind_at("/x", "1:1", ()) is None


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_parses_any_bytes_without_an_error(content: bytes) -> None:
    for mount in parse_mountinfo([content, b"1 2 3:4 / " + content.replace(b" ", b"") + b" rw - x y z"]):
        assert mount.kind


def test_finds_the_file_system_types_of_this_machine(tmp_path: Path) -> None:
    mounted = parse_mountinfo(Path("/proc/self/mountinfo").read_bytes().splitlines())
    assert kind_of("/proc/self") == "proc"
    assert kind_of(tmp_path / "not" / "there") == kind_of(tmp_path)
    assert kind_of(tmp_path) in {mount.kind for mount in mounted}
    (tmp_path / "link").symlink_to("/proc")
    assert kind_of(tmp_path / "link" / "self") == "proc"
    assert kind_of(os.fsdecode(b"/\xff")) == kind_of("/")
