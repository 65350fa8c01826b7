"""torchvision's side of throughput.rs: `measure FOLDER` prints three figures, `write FOLDER` makes JPEGs of PNGs."""

import io
import pathlib
import sys
import time

import torch
from PIL import Image
from torchvision.transforms import v2 as T

FILES, TIMES = 64, 16
TRAIN = T.Compose(
    [
        T.RandomResizedCrop(224),
        T.RandomHorizontalFlip(),
        T.ToImage(),
        T.ToDtype(torch.float32, scale=True),
        T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]
)


class Files(torch.utils.data.Dataset):
    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return FILES * TIMES

    def __getitem__(self, n):
        with open(self.folder / f"{n % FILES}.jpg", "rb") as file:
            image = Image.open(file).convert("RGB")
        return TRAIN(image)


def measure(folder):
    torch.set_num_threads(1)
    files = [(folder / f"{n}.jpg").read_bytes() for n in range(FILES)]
    start = time.perf_counter()
    images = [Image.open(io.BytesIO(f)).convert("RGB") for f in files]
    decode = (time.perf_counter() - start) * 1e3 / FILES
    for image in images[:8]:
        TRAIN(image)
    start = time.perf_counter()
    for image in images:
        TRAIN(image)
    transforms = (time.perf_counter() - start) * 1e3 / FILES
    loader = torch.utils.data.DataLoader(Files(folder), batch_size=64, shuffle=True, num_workers=2)
    start = time.perf_counter()
    count = sum(batch.shape[0] for batch in loader)
    print(decode, transforms, count / (time.perf_counter() - start))


def write(folder):
    for n in range(FILES):
        Image.open(folder / f"{n}.png").save(folder / f"{n}.jpg", quality=90, subsampling=2)


folder = pathlib.Path(sys.argv[2])
measure(folder) if sys.argv[1] == "measure" else write(folder)
