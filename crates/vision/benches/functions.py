"""torchvision's side of functions.rs: a line of name and microseconds for each."""

import time

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode as I
from torchvision.transforms import functional as F

torch.set_num_threads(1)
x = Image.fromarray(np.random.RandomState(0).randint(0, 256, (375, 500, 3)).astype(np.uint8))
FUNCTIONS = {
    "resize to 256": lambda: F.resize(x, 256),
    "resized_crop to 224": lambda: F.resized_crop(x, 30, 40, 275, 367, [224, 224]),
    "center_crop": lambda: F.center_crop(x, 224),
    "pad": lambda: F.pad(x, 4),
    "hflip": lambda: F.hflip(x),
    "vflip": lambda: F.vflip(x),
    "rotate, nearest": lambda: F.rotate(x, 10),
    "rotate, bilinear": lambda: F.rotate(x, 10, I.BILINEAR),
    "rotate, bicubic": lambda: F.rotate(x, 10, I.BICUBIC),
    "adjust_brightness": lambda: F.adjust_brightness(x, 1.3),
    "adjust_contrast": lambda: F.adjust_contrast(x, 1.3),
    "adjust_saturation": lambda: F.adjust_saturation(x, 1.3),
    "adjust_hue": lambda: F.adjust_hue(x, 0.1),
    "adjust_sharpness": lambda: F.adjust_sharpness(x, 1.3),
    "gaussian_blur": lambda: F.gaussian_blur(x, 5, 1.0),
    "rgb_to_grayscale": lambda: F.rgb_to_grayscale(x, 3),
    "autocontrast": lambda: F.autocontrast(x),
    "equalize": lambda: F.equalize(x),
    "invert": lambda: F.invert(x),
    "posterize": lambda: F.posterize(x, 3),
    "solarize": lambda: F.solarize(x, 100),
    "to_tensor": lambda: F.to_tensor(x),
    "pil_to_tensor": lambda: F.pil_to_tensor(x),
}


def least(function):
    times = []
    for _ in range(10):
        start = time.perf_counter()
        for _ in range(5):
            function()
        times.append((time.perf_counter() - start) * 1e6 / 5)
    return min(times)


for name, function in FUNCTIONS.items():
    print(f"{name}\t{least(function)}")
