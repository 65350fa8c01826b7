"""Writes goldens/: what Pillow and torchvision make of images that a formula gives.

    python crates/vision/tests/vision/goldens.py

`cases.txt` has a line a case, its words and then the size of the result; `pixels.bin` holds the results one after
the other, `hashes.txt` hashes of larger ones, `repr.txt` printed transforms, and the other files are images.
"""

import pathlib
import random

import numpy as np
import PIL
import torchvision
from PIL import Image
from torchvision import transforms as T
from torchvision.transforms import InterpolationMode as I
from torchvision.transforms import functional as F

HERE = pathlib.Path(__file__).parent / "goldens"
MASK = (1 << 64) - 1


def noise(width, height, channels, seed):
    """Bytes of a linear congruential generator, less wild towards the right."""
    state = seed
    out = np.zeros((height, width, channels), np.uint8)
    for y in range(height):
        for x in range(width):
            for c in range(channels):
                state = (state * 6364136223846793005 + 1442695040888963407) & MASK
                byte = state >> 56
                out[y, x, c] = byte if x * 2 < width else (byte % 64 + x * 3 + y * 2 + c * 20) % 256
    return out


def image(mode, width=23, height=19):
    channels = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}[mode]
    pixels = noise(width, height, channels, 1234 + channels)
    return Image.fromarray(pixels[..., 0] if channels == 1 else pixels, mode)


class Out:
    def __init__(self):
        self.lines, self.bytes = [], b""

    def add(self, words, im):
        a = np.asarray(im)
        a = a[..., None] if a.ndim == 2 else a
        self.lines.append(f"{words} = {a.shape[1]} {a.shape[0]} {a.shape[2]}")
        self.bytes += a.tobytes()


FILTERS = {
    "nearest": I.NEAREST,
    "bilinear": I.BILINEAR,
    "bicubic": I.BICUBIC,
    "box": I.BOX,
    "hamming": I.HAMMING,
    "lanczos": I.LANCZOS,
}
MODES = ["L", "LA", "RGB", "RGBA"]


def resizes(out):
    for name, mode in FILTERS.items():
        for h, w in [(11, 13), (40, 45), (19, 50), (50, 23), (1, 1), (3, 70)]:
            out.add(f"resize RGB {name} {h} {w}", F.resize(image("RGB"), [h, w], mode))
        for im in ["L", "LA", "RGBA"]:
            for h, w in [(11, 13), (33, 40)]:
                out.add(f"resize {im} {name} {h} {w}", F.resize(image(im), [h, w], mode))
        out.add(f"resized_crop RGB {name} 3 5 12 15 12 14", F.resized_crop(image("RGB"), 3, 5, 12, 15, [12, 14], mode))
    out.add("resized_crop RGB bilinear -2 5 17 60 12 14", F.resized_crop(image("RGB"), -2, 5, 17, 60, [12, 14]))
    for size in [8, 19, 40]:
        out.add(f"shorter RGB {size}", F.resize(image("RGB"), size))
        out.add(f"shorter_tall RGB {size}", F.resize(image("RGB").transpose(Image.TRANSPOSE), size))
    out.add("max_size RGB 20 24", F.resize(image("RGB"), 20, max_size=24))


def geometry(out):
    for m in MODES:
        im = image(m)
        out.add(f"hflip {m}", F.hflip(im))
        out.add(f"vflip {m}", F.vflip(im))
        out.add(f"crop {m} -3 5 40 20", F.crop(im, -3, 5, 40, 20))
        out.add(f"center_crop {m} 10 13", F.center_crop(im, [10, 13]))
        out.add(f"center_crop {m} 40 12", F.center_crop(im, [40, 12]))
        out.add(f"center_crop {m} 36 41", F.center_crop(im, [36, 41]))
    im = image("RGB")
    for i, part in enumerate(F.five_crop(im, [10, 14])):
        out.add(f"five_crop RGB 10 14 {i}", part)
    for i, part in enumerate(F.ten_crop(im, [10, 14], vertical_flip=True)):
        out.add(f"ten_crop RGB 10 14 {i}", part)
    for mode in ["constant", "edge", "reflect", "symmetric"]:
        out.add(f"pad RGB {mode} 1 2 3 4", F.pad(im, [1, 2, 3, 4], (7, 8, 9), mode))
    for angle in [0, 30, -17.5, 90, 180, 270, 359.5]:
        for name in ["nearest", "bilinear", "bicubic"]:
            for expand in [0, 1]:
                if expand == 0 or angle in (30, 90):
                    r = F.rotate(im, angle, FILTERS[name], bool(expand), None, (5, 6, 7))
                    out.add(f"rotate RGB {angle} {name} {expand}", r)
    out.add("rotate_center RGB 33 3 4", F.rotate(im, 33, I.BILINEAR, False, [3, 4], 0))
    out.add("rotate RGBA 30 bilinear 0", F.rotate(image("RGBA"), 30, I.BILINEAR, False, None, (5, 6, 7, 8)))
    out.add("rotate L 30 bicubic 0", F.rotate(image("L"), 30, I.BICUBIC, False, None, 5))
    # Sines and cosines whose fifteenth digit is nearly a tie.
    for angle, name in [(45, "bilinear"), (68.4, "bicubic")]:
        out.add(f"rotate RGB {angle} {name} 0", F.rotate(im, angle, FILTERS[name], False, None, (5, 6, 7)))
    affine = [
        (0, 3.0, -2.0, 1.0, 0, 0),
        (20, 2.5, 1.5, 1.3, 10, -5),
        (-70, 0, 4, 0.6, 0, 25),
        (0, 0, 0, 0.5, 0, 0),
        (0, 0.25, 0.75, 1.7, 0, 0),
    ]
    for name in ["nearest", "bilinear", "bicubic"]:
        for a, x, y, s, sx, sy in affine:
            r = F.affine(im, a, [x, y], s, [sx, sy], FILTERS[name], (1, 2, 3))
            out.add(f"affine RGB {name} {a} {x} {y} {s} {sx} {sy}", r)


def colours(out):
    for m in MODES:
        im = image(m)
        for f in [0, 0.37, 1, 1.8]:
            out.add(f"brightness {m} {f}", F.adjust_brightness(im, f))
            out.add(f"contrast {m} {f}", F.adjust_contrast(im, f))
            out.add(f"saturation {m} {f}", F.adjust_saturation(im, f))
            out.add(f"sharpness {m} {f}", F.adjust_sharpness(im, f))
        for to in MODES:
            out.add(f"convert {m} {to}", im.convert(to))
    for m in ["L", "RGB"]:
        im = image(m)
        for f in [-0.5, -0.2, 0, 0.1, 0.5]:
            out.add(f"hue {m} {f}", F.adjust_hue(im, f))
        out.add(f"gamma {m} 0.7 1.2", F.adjust_gamma(im, 0.7, 1.2))
        out.add(f"invert {m}", F.invert(im))
        out.add(f"autocontrast {m}", F.autocontrast(im))
        out.add(f"equalize {m}", F.equalize(im))
        for n in [1, 3]:
            out.add(f"grayscale {m} {n}", F.rgb_to_grayscale(im, n))
        for bits in [1, 3, 8]:
            out.add(f"posterize {m} {bits}", F.posterize(im, bits))
        for t in [0, 100.5, 256]:
            out.add(f"solarize {m} {t}", F.solarize(im, t))
        for kx, ky, sx, sy in [(3, 3, 0.8, 0.8), (5, 9, 1.5, 3.0), (1, 3, 1, 1)]:
            out.add(f"blur {m} {kx} {ky} {sx} {sy}", F.gaussian_blur(im, [kx, ky], [sx, sy]))
    # All colours of a cube through hue and grey.
    levels = np.array([0, 1, 2, 63, 100, 127, 128, 200, 254, 255], np.uint8)
    cube = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), -1).reshape(100, 10, 3)
    for f in [-0.31, 0, 0.25]:
        out.add(f"hue cube {f}", F.adjust_hue(Image.fromarray(cube), f))
    out.add("convert cube L", Image.fromarray(cube).convert("L"))


def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & MASK
    return h


def hashes():
    draw = random.Random(5)
    lines = []
    im = image("RGB", 190, 140)
    for _ in range(24):
        w, h = draw.randint(1, 420), draw.randint(1, 320)
        for name in ["nearest", "bilinear", "bicubic", "box"]:
            out = F.resize(im, [h, w], FILTERS[name])
            lines.append(f"{name} {h} {w} = {fnv(out.tobytes())}")
    return lines


def files():
    im = image("RGB", 40, 30)
    smooth = im.resize((33, 21), Image.BICUBIC).resize((53, 37), Image.BICUBIC)
    out = Out()

    def kept(name, source, **options):
        source.save(HERE / name, **options)
        out.add(f"file {name}", Image.open(HERE / name).convert(source.mode if source.mode != "P" else "RGB"))

    for m in MODES:
        kept(f"{m}.png", image(m, 19, 15))
    kept("palette.png", im.quantize(32))
    kept("rgb.bmp", im)
    kept("grey.bmp", image("L", 19, 15))
    kept("palette.gif", im.quantize(64))
    kept("rgb.webp", smooth, lossless=True)
    kept("444.jpg", smooth, quality=90, subsampling=0)
    kept("420.jpg", smooth, quality=80, subsampling=2)
    kept("422.jpg", smooth, quality=80, subsampling=1)
    kept("progressive.jpg", smooth, quality=85, progressive=True)
    kept("grey.jpg", smooth.convert("L"), quality=85)
    return out


REPR = """
T.Compose([T.Resize(256), T.CenterCrop(224), T.ToTensor(), T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
T.Resize((20, 30), I.BICUBIC)
T.Resize(20, max_size=40, antialias=False)
T.RandomResizedCrop(224)
T.RandomCrop(32, padding=4)
T.RandomCrop((32, 30))
T.Pad((1, 2), 3, "reflect")
T.RandomHorizontalFlip()
T.RandomVerticalFlip(0.25)
T.ColorJitter(0.4, (0.5, 1.5), 0, 0.1)
T.Grayscale()
T.RandomGrayscale()
T.GaussianBlur(3)
T.GaussianBlur((5, 7), 1.5)
T.RandomRotation(30)
T.RandomRotation((10, 20), expand=True, fill=3)
T.RandomAffine(30, (0.1, 0.2), (0.8, 1.2), 10)
T.RandomErasing()
T.RandomErasing(value="random")
T.RandomApply([T.Grayscale(3)], 0.3)
T.RandomChoice([T.RandomHorizontalFlip(), T.CenterCrop(3)])
T.RandomOrder([T.RandomInvert(), T.RandomEqualize()])
T.Lambda(abs)
T.PILToTensor()
T.ToPILImage()
T.FiveCrop(3)
T.TenCrop((3, 4))
T.RandomPosterize(3)
T.RandomSolarize(100.0)
T.RandomAdjustSharpness(2.0)
T.RandomAutocontrast()
"""


def main():
    HERE.mkdir(exist_ok=True)
    out = Out()
    resizes(out)
    geometry(out)
    colours(out)
    (HERE / "cases.txt").write_text("\n".join(out.lines) + "\n")
    (HERE / "pixels.bin").write_bytes(out.bytes)
    (HERE / "hashes.txt").write_text("\n".join(hashes()) + "\n")
    out = files()
    (HERE / "files.txt").write_text("\n".join(out.lines) + "\n")
    (HERE / "files.bin").write_bytes(out.bytes)
    reprs = [f"{line}\n{eval(line)}\n" for line in REPR.strip().split("\n")]
    (HERE / "repr.txt").write_text("\n".join(reprs))
    print(f"Pillow {PIL.__version__}, torchvision {torchvision.__version__}")


main()
