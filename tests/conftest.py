"""One thread per process: the test workers fill the cores, and sums add up in the same order everywhere."""

import torch

torch.set_num_threads(1)
