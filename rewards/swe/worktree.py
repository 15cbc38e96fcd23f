"""Work trees on machines: preparing one, taking the diff of what was done in it, and applying a diff.

A repository of our own beside the work tree (BASE) knows what it was like. What the agent does to the `.git` in its
work tree, or writes into .gitignore or .gitattributes, makes no difference to the diff.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from palestra.rewards.swe.machine import BASE, PRIVATE, Machine, checked
from palestra.tasks.swe.repair import Repair, protected_among
from palestra.tasks.swe.tree import NOISE, Tree

MAX_PATCH_BYTES = 32 * 2**20
_SETUP_S = 600.0
_GIT_S = 120.0
_PATCH = "/tmp/.palestra.patch"
_GIT = "git -c safe.directory=* -c core.autocrlf=false -c core.fsmonitor=false -c core.hooksPath=/dev/null"
_QUIET = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "palestra",
    "GIT_AUTHOR_EMAIL": "palestra@localhost",
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "palestra",
    "GIT_COMMITTER_EMAIL": "palestra@localhost",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z",
    "HOME": "/tmp",
}
_NAMED = " -o ".join(f"-name '{name}'" for name in NOISE)
_FILES = rf"find . \( {_NAMED} \) -prune -o \( -type f -o -type l \) -print0"
_AS_IS = "* -text -eol -ident -filter -working-tree-encoding !diff"

_PREPARE = f"""
set -e
rm -rf .git
git init -q -b main .
printf '%s\n' {" ".join(f"'{n}'" for n in NOISE if n != ".git")} > .git/info/exclude
git add -A -f . && git commit -q --allow-empty -m base
rm -f .git/hooks/*
"""
_OPEN = '[ -d "$WORKDIR" ] || { mkdir -p "$WORKDIR" && chmod 777 "$WORKDIR"; }'
_KEEP = f"""
set -e
rm -rf {BASE}
git init -q -b main {BASE}.new
cd {BASE}.new
printf '%s\n' '{_AS_IS}' > .git/info/attributes
export GIT_WORK_TREE="$WORKDIR" GIT_DIR={BASE}.new/.git
cd "$WORKDIR"
{_FILES} | {_GIT} update-index --add -z --stdin
{_GIT} commit -q --allow-empty -m base
{_GIT} tag base
mv {BASE}.new/.git {BASE}
rm -rf {BASE}.new
chmod -R a+rX {PRIVATE}
"""
_STAGE = f"""
set -e
private=$(mktemp -d)
trap 'rm -rf "$private"' EXIT
cp {BASE}/index "$private/index"
mkdir "$private/objects"
export GIT_DIR={BASE} GIT_WORK_TREE="$PWD" GIT_INDEX_FILE="$private/index"
export GIT_OBJECT_DIRECTORY="$private/objects" GIT_ALTERNATE_OBJECT_DIRECTORIES={BASE}/objects
{_FILES} | LC_ALL=C sort -z | sed -z 's#^\\./##' > "$private/here"
{_GIT} ls-files -z | LC_ALL=C sort -z > "$private/there"
LC_ALL=C comm -z -13 "$private/here" "$private/there" | {_GIT} update-index --force-remove -z --stdin
{_GIT} update-index --add --replace -z --stdin < "$private/here"
"""
_DIFF = f"""{_STAGE}
found=$(mktemp)
{_GIT} diff --cached --binary --full-index --no-renames --no-color --no-ext-diff base > "$found"
echo "$found"
"""
_CHANGED = f"{_STAGE}{_GIT} diff --cached --name-only --no-renames -z base"
_APPLY = f"""
git() {{ command {_GIT} "$@"; }}
git apply --binary --whitespace=nowarn {_PATCH} && exit 0
git apply --binary --whitespace=nowarn --recount {_PATCH} && exit 0
patch --batch --forward --fuzz=5 -p1 -s -r - -i {_PATCH}
"""
_RESTORE = f"""
GIT_DIR={BASE} GIT_WORK_TREE="$PWD" GIT_INDEX_FILE={BASE}/index {_GIT} checkout-index -f -z --stdin
"""


class PatchError(ValueError):
    """Raised for a diff that does not apply; says what git and patch say."""


def prepare(machine: Machine, repair: Repair, tree: Tree | None) -> None:
    """Put the broken tree on a machine, as a repository without history. Raises MachineError."""
    if tree is not None:
        machine.write("/tmp/.palestra.tar", tree.to_tar())
        unpack = (
            f"mkdir -p '{repair.workdir}' && tar -xf /tmp/.palestra.tar -C '{repair.workdir}' --no-same-owner"
        )
        checked(machine.exec(unpack, timeout_s=_SETUP_S), "unpacking the tree")
        machine.exec("rm -f /tmp/.palestra.tar")
    if repair.setup:
        for user in (
            "agent",
            "root",
        ):  # root has no rights beyond its own files: either may be the one who can
            machine.exec(_OPEN, env={"WORKDIR": repair.workdir}, user=user)
        done = machine.exec(repair.setup, cwd=repair.workdir, timeout_s=_SETUP_S, user=repair.setup_user)
        checked(done, "the setup of the task")
    checked(machine.exec(_PREPARE, cwd=repair.workdir, env=_QUIET, timeout_s=_SETUP_S), "committing the tree")
    env = {**_QUIET, "WORKDIR": repair.workdir}
    checked(machine.exec(f"mkdir -p {PRIVATE}", user="root"), f"making {PRIVATE}")
    checked(machine.exec(_KEEP, env=env, timeout_s=_SETUP_S, user="root"), "keeping the tree")


def take_diff(machine: Machine, workdir: str) -> bytes:
    """What was done in the work tree, as a git diff: tracked or not, ignored or not, binary or text; noise apart.

    Raises MachineError, and PatchError where it is larger than MAX_PATCH_BYTES.
    """
    done = checked(machine.exec(_DIFF, cwd=workdir, env=_QUIET, timeout_s=_GIT_S), "taking the diff")
    file = done.stdout.decode().strip()
    patch = machine.read(file, MAX_PATCH_BYTES + 1)
    machine.exec(["rm", "-f", file])
    if len(patch) > MAX_PATCH_BYTES:
        raise PatchError(f"the diff is larger than {MAX_PATCH_BYTES >> 20} MiB")
    return patch


def apply(machine: Machine, repair: Repair, patch: bytes) -> None:
    """Apply a git diff in the work tree of a fresh machine. Raises PatchError."""
    if not patch.strip():
        return
    machine.write(_PATCH, patch if patch.endswith(b"\n") else patch + b"\n")
    done = machine.exec(_APPLY, cwd=repair.workdir, env=_QUIET, timeout_s=_GIT_S)
    machine.exec(["rm", "-f", _PATCH])
    if done.exit_code or done.timed_out:
        raise PatchError((done.stderr + done.stdout)[-600:].decode("utf-8", "replace").strip())


def changed_paths(machine: Machine, repair: Repair) -> list[str]:
    """The paths that differ from the broken tree. Raises MachineError."""
    done = machine.exec(_CHANGED, cwd=repair.workdir, env=_QUIET, timeout_s=_GIT_S)
    return _names(checked(done, "git diff").stdout)


def restore_tests(machine: Machine, repair: Repair) -> list[str]:
    """Undo what was done to tests and to what configures them; returns the paths. Raises MachineError."""
    listed = f"GIT_DIR={BASE} {_GIT} ls-tree -r --name-only -z base"
    known = checked(machine.exec(listed, env=_QUIET, timeout_s=_GIT_S), "git ls-tree")
    undone = protected_among(changed_paths(machine, repair), repair, _names(known.stdout))
    if undone:
        _feed(machine, repair, "xargs -0 -r rm -rf --", undone)
        lost = [p for p in _names(known.stdout) if {p, *map(str, PurePosixPath(p).parents)} & set(undone)]
        _feed(machine, repair, _RESTORE, lost)
    return undone


def _feed(machine: Machine, repair: Repair, script: str, paths: list[str]) -> None:
    """Run a script in the work tree with paths on its standard input, each ended by a zero byte."""
    data = "".join(f"{p}\0" for p in paths).encode("utf-8", "surrogateescape")
    done = machine.exec(script, cwd=repair.workdir, env=_QUIET, timeout_s=_GIT_S, stdin=data)
    checked(done, "restoring the tests")


def _names(listing: bytes) -> list[str]:
    return [n for n in listing.decode("utf-8", "surrogateescape").split("\0") if n]
