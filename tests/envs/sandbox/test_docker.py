"""What only Docker sandboxes do: images of the daemon, which all backends of a process share."""

from __future__ import annotations

import pytest

from palestra.envs.sandbox.errors import SandboxError
from sandboxes import SMALL, backend, base_image

pytestmark = pytest.mark.xdist_group("docker")


def test_a_backend_that_is_closed_leaves_the_snapshots_of_another_one() -> None:
    with backend("docker") as one, one.create(base_image(), SMALL) as sandbox:
        sandbox.write("/work/a", b"kept")
        with sandbox.snapshot() as saved:
            backend("docker").close()
            with one.create(saved, SMALL) as second:
                assert second.read("/work/a") == b"kept"


def test_a_backend_takes_its_snapshots_along() -> None:
    from palestra.envs.sandbox.docker import SNAPSHOTS, DockerBackend

    with backend("docker") as one, one.create(base_image(), SMALL) as sandbox:
        sandbox.snapshot()
        assert isinstance(one, DockerBackend)
        [kept] = [i for i in one.client.images.list(SNAPSHOTS) if i.labels["palestra.owner"] == one.label]
    with backend("docker") as other:
        assert isinstance(other, DockerBackend)
        assert kept.id not in {image.id for image in other.client.images.list(all=True)}


def test_no_registry_is_asked_for_an_image_that_is_gone() -> None:
    from palestra.envs.sandbox.docker import SNAPSHOTS, DockerBackend

    with backend("docker") as one, one.create(base_image(), SMALL) as sandbox:
        assert isinstance(one, DockerBackend)
        with sandbox.snapshot() as saved:
            for image in one.client.images.list(SNAPSHOTS):
                if image.labels["palestra.owner"] == one.label:
                    one.remove_image(image.id)
            with pytest.raises(SandboxError, match="No such image"):
                sandbox.restore(saved)
        assert sandbox.exec("true").exit_code == 0
