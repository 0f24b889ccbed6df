"""Training on one device: recipes, the loop, checkpoints, metrics, plots."""

from palimpsest.training.checkpoint import checkpoint_steps, latest_checkpoint, model_folder
from palimpsest.training.log import read_metrics
from palimpsest.training.loop import TrainingDivergedError
from palimpsest.training.plot import plot_runs
from palimpsest.training.recipe import (
    DataRecipe,
    ModelRecipe,
    OptimizerRecipe,
    Recipe,
    TrainRecipe,
)
from palimpsest.training.recipe_file import dump_recipe, list_recipes, load_recipe
from palimpsest.training.run import RunResult, resume, train

__all__ = [
    "DataRecipe",
    "ModelRecipe",
    "OptimizerRecipe",
    "Recipe",
    "RunResult",
    "TrainRecipe",
    "TrainingDivergedError",
    "checkpoint_steps",
    "dump_recipe",
    "latest_checkpoint",
    "list_recipes",
    "load_recipe",
    "model_folder",
    "plot_runs",
    "read_metrics",
    "resume",
    "train",
]
