"""The projection against a dense computation."""

from __future__ import annotations

import numpy as np
import torch

from palimpsest.inspect.trajectory import Trajectory, align


def test_projection_is_that_of_a_singular_value_decomposition() -> None:
    states_NF = torch.randn(1500, 7, dtype=torch.float64) * torch.arange(1.0, 8.0) + 40.0
    with Trajectory() as trajectory:
        for part in states_NF.float().split(400):
            trajectory.add(part)
        points, shares = trajectory.project()
    centred = states_NF - states_NF.mean(0)
    _, sizes, rows = torch.linalg.svd(centred, full_matrices=False)
    expected = (centred @ rows[:2].T).numpy()
    signs = np.sign((points * expected).sum(0))
    np.testing.assert_allclose(points * signs, expected, atol=2e-3)
    wanted = (sizes**2 / (sizes**2).sum())[:2].tolist()
    np.testing.assert_allclose(shares, wanted, rtol=1e-4)


def test_a_state_that_never_changes_is_one_point() -> None:
    with Trajectory() as trajectory:
        trajectory.add(torch.ones(5, 3))
        points, shares = trajectory.project()
    assert points.shape == (5, 2) and not points.any()
    assert shares == (0.0, 0.0)


def test_turning_changes_no_distance_and_undoes_a_rotation() -> None:
    points = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    turn = np.array([[0.6, -0.8], [0.8, 0.6]], np.float32) * [1.0, -1.0]
    np.testing.assert_allclose(align(points @ turn.astype(np.float32), points), points, atol=1e-5)
