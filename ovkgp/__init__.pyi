from ovkgp import bridges as bridges
from ovkgp import criticism as criticism
from ovkgp import datasets as datasets
from ovkgp import estimators as estimators
from ovkgp import exceptions as exceptions
from ovkgp import features as features
from ovkgp import functional as functional
from ovkgp import inference as inference
from ovkgp import kernels as kernels
from ovkgp import losses as losses
from ovkgp import metrics as metrics
from ovkgp import plotting as plotting
from ovkgp import recipes as recipes
from ovkgp.estimators import *  # noqa: F403
from ovkgp.functional import FunctionalData as FunctionalData
from ovkgp.inference import to_long as to_long
from ovkgp.inference import to_wide as to_wide
from ovkgp.recipes import load_recipe as load_recipe

__version__: str
