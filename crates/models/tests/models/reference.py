"""Makes reference.json, what PyTorch does with torchvision's and transformers' models: `python reference.py reference.json`.
With the names of models behind it, it makes these anew and keeps the others; with `--keys NAME` it prints the state dict
that a hash in the file is of; with `--folders FOLDER` it reads what the test `folders_are_written_and_read` writes into
the folder that KILN_FOLDERS names.

`keys`: of each model in its published size, how many values its state dict has, how many numbers the parameters, and a
hash of names, dtypes and shapes in their order.
`cases`: a model, made small where it can be, with weights and inputs by the formula below (`uniform`, `weight`), which
the tests share. Its results in f64, in evaluation; and of some, in training with dropout off, the loss, samples of
gradients, and samples of the buffers after the step.

`error` beside values is how far PyTorch in f32 is from them at most, over the whole tensor: the largest of three ways
to compute it (oneDNN's kernels, PyTorch's own, and channels last), which sum in different orders. A program that sums
in yet another one is off by as much; the tests allow eight times that, and no less than eight roundings of the largest
value.
"""
import copy, json, os, sys, warnings
import numpy as np, torch, torchvision, transformers
from torch import nn

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
torch.manual_seed(0)
MASK = (1 << 64) - 1

def fnv(text):
    h = 0xCBF29CE484222325
    for b in text.encode():
        h = (h ^ b) * 0x100000001B3 & MASK
    return h

def uniform(key, count):
    """Numbers in [-1, 1) of 24 bits, by the splitmix64 of the key's hash and the place."""
    with np.errstate(over="ignore"):
        z = np.uint64(fnv(key)) + (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(40)).astype(np.float64) / (1 << 23) - 1

def weight(key, shape, gain):
    """Matrices of variance gain / fan-in, norms near 1, variances in [0.75, 1.25)."""
    count = int(np.prod(shape))
    u = uniform(key, count)
    if key.endswith("running_var"): u = 1 + u / 4
    elif len(shape) < 2: u = u / 8 + (1 if key.endswith("weight") else 0)
    else: u = u * np.sqrt(3 * gain * shape[0] / count)
    return torch.from_numpy(u.astype(np.float32).reshape(shape))

def fill(model, gain):
    seen = set()
    for key, value in model.state_dict().items():
        if value.is_floating_point() and value.data_ptr() not in seen:
            seen.add(value.data_ptr())
            value.copy_(weight(key, tuple(value.shape), gain))

def keys(name, model):
    text = listing(model)
    return {"model": name, "values": text.count("\n"), "parameters": sum(p.numel() for p in model.parameters()),
            "hash": f"{fnv(text):016x}"}

def listing(model):
    return "".join(f"{k} {str(v.dtype)[6:]} {list(v.shape)}\n" for k, v in model.state_dict().items())

# Models that torchvision and transformers lack, under Kiln's names.

class UNet(nn.Module):
    def __init__(self, channels, classes, width, levels):
        super().__init__()
        def double(a, b):
            return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(),
                                 nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())
        widths = [width << i for i in range(levels)]
        self.down = nn.ModuleList(double(a, b) for a, b in zip([channels] + widths, widths))
        self.bottom = double(widths[-1], 2 * widths[-1])
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths))
        self.merge = nn.ModuleList(double(2 * w, w) for w in reversed(widths))
        self.head = nn.Conv2d(width, classes, 1)
    def forward(self, x):
        skipped = []
        for level in self.down:
            x = level(x)
            skipped.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.bottom(x)
        for up, merge in zip(self.up, self.merge):
            x = merge(torch.cat([skipped.pop(), up(x)], 1))
        return self.head(x)

class Gpt(nn.Module):
    def __init__(self, vocabulary, context, layers, width, heads, hidden):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, hidden, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers))
        self.norm = nn.LayerNorm(width)
    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.positions(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length, dtype=x.dtype)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.norm(x) @ self.tokens.weight.T

GPT2 = dict(vocab_size=61, n_positions=16, n_embd=36, n_layer=3, n_head=3, n_inner=80, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
BERT = dict(vocab_size=61, hidden_size=36, num_hidden_layers=3, num_attention_heads=3, intermediate_size=80,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=16, num_labels=5)

def vision(name, **options):
    if name in ("googlenet", "inception_v3"):
        options = dict(aux_logits=True, init_weights=False) | options
    return getattr(torchvision.models, name)(weights=None, **options)

def text(kind, **options):
    config = transformers.GPT2Config if kind.startswith("GPT2") else transformers.BertConfig
    return getattr(transformers, kind)(config(**options))

# Sizes of images, the gain, options, and whether a step is taken.
VISION = {
    "resnet18": ([45, 33], 2, {}, True), "resnet34": ([45, 33], 2, {}, False), "resnet50": ([45, 33], 2, {}, True),
    "resnet101": ([45, 33], 1, {}, False), "resnet152": ([45, 33], 1, {}, False),
    "resnext50_32x4d": ([45, 33], 2, {}, False), "resnext101_32x8d": None,
    "resnext101_64x4d": ([45, 33], 1, {}, False), "wide_resnet50_2": ([45, 33], 2, {}, False),
    "wide_resnet101_2": None,
    "alexnet": ([67, 70], 2, {}, False), "vgg11": ([37, 45], 2, {}, False), "vgg13": None, "vgg16": None,
    "vgg19": None, "vgg11_bn": None, "vgg13_bn": None, "vgg16_bn": None, "vgg19_bn": ([37, 45], 2, {}, False),
    "squeezenet1_0": ([37, 45], 2.5, {}, False), "squeezenet1_1": ([37, 45], 2.5, {}, True),
    "mobilenet_v2": ([45, 33], 2, {}, True), "mobilenet_v3_small": ([45, 33], 2.5, {}, True),
    "mobilenet_v3_large": ([45, 33], 2.2, {}, False),
    "efficientnet_b0": ([45, 33], 2.7, {}, True), "efficientnet_b1": ([45, 33], 2.4, {}, False), "efficientnet_b2": None,
    "efficientnet_b3": None, "efficientnet_b4": None, "efficientnet_b5": ([33, 33], 2.2, {}, False),
    "efficientnet_b6": None, "efficientnet_b7": None,
    "densenet121": ([37, 45], 2, {}, True), "densenet161": ([37, 45], 2, {}, False),
    "densenet169": ([37, 45], 2, {}, False), "densenet201": ([37, 45], 2, {}, False),
    "googlenet": ([112, 95], 2.5, {"transform_input": True}, True),
    "inception_v3": ([299, 299], 2.3, {"transform_input": True}, True),
    "shufflenet_v2_x0_5": ([45, 33], 2, {}, True), "shufflenet_v2_x1_0": ([45, 33], 2, {}, False),
    "shufflenet_v2_x1_5": ([45, 33], 2, {}, False), "shufflenet_v2_x2_0": ([45, 33], 2, {}, False),
    "vit_b_16": ([48, 48], 2, {"image_size": 48}, False), "vit_b_32": ([64, 64], 2, {"image_size": 64}, False),
    "vit_l_16": None, "vit_l_32": None,
    "convnext_tiny": ([45, 33], 2, {}, True), "convnext_small": ([45, 33], 2, {}, False),
    "convnext_base": None, "convnext_large": None,
}
TEXT = {"GPT2Model": GPT2, "GPT2LMHeadModel": GPT2, "BertModel": BERT, "BertForMaskedLM": BERT,
        "BertForSequenceClassification": BERT}
CLASSES = 10
# Whose gradients in f32 jump, in PyTorch too, where rounding moves a number across a kink of ReLU or of a maximum.
IN_F64 = {"googlenet"}

class Case:
    """A model with its weights, and its inputs."""
    def __init__(self, name):
        self.name, self.inputs = name, {}
        if VISION.get(name):
            size, self.gain, options, self.step = VISION[name]
            self.model = vision(name, num_classes=CLASSES, **options)
            self.images(3, size)
        elif name == "vit":
            self.model = torchvision.models.VisionTransformer(24, 8, 3, 3, 36, 80, num_classes=CLASSES,
                                                              representation_size=20)
            self.gain, self.step = 2, True
            self.images(3, [24, 24])
        elif name == "unet":
            self.model, self.gain, self.step = UNet(2, 3, 6, 3), 2, True
            # Of which no number is so near 0 in front of a ReLU that rounding moves it across: where there are few
            # numbers, one gradient more or less is much.
            self.images(2, [24, 40], "images of the U-Net 23")
        elif name == "gpt":
            self.model, self.gain, self.step = Gpt(61, 16, 2, 36, 3, 80), 2, True
            self.tokens()
        else:
            self.model, self.gain, self.step = text(name, **TEXT[name]), 2, "Model" not in name or "LM" in name
            self.tokens()
            mask = torch.ones(2, 11, dtype=torch.long)
            mask[1, 7:] = 0
            self.inputs["attention_mask"] = mask
            if name.startswith("Bert"):
                self.inputs["token_type_ids"] = (torch.arange(11) > 4).long().expand(2, -1).contiguous()
        fill(self.model, self.gain)

    def images(self, channels, size, key="images"):
        shape = (2, channels, *size)
        self.images = torch.from_numpy(uniform(key, int(np.prod(shape))).astype(np.float32).reshape(shape))
        self.shape, self.key = list(shape), key

    def tokens(self):
        u = ((uniform("tokens", 22) + 1) * (1 << 23)).astype(np.int64)
        self.images = torch.from_numpy(u % 61).reshape(2, 11)
        self.shape, self.key = [2, 11], "tokens"

    def results(self, dtype, training):
        """Named results of the model in a dtype, in training with its loss and gradients and changed buffers."""
        model = copy.deepcopy(self.model).to(dtype).train(training)
        if training:
            for m in model.modules():
                if isinstance(m, nn.Dropout) or type(m).__name__ == "StochasticDepth": m.eval()
        x = self.images.to(dtype) if self.images.is_floating_point() else self.images
        if self.last and x.ndim == 4:
            model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
        with torch.set_grad_enabled(training):
            y = model(x, **self.inputs)
        if hasattr(y, "keys"): y = {k: v for k, v in y.items() if isinstance(v, torch.Tensor)}
        elif hasattr(y, "_asdict"): y = y._asdict()
        else: y = {"logits": y}
        if not training: return {k: v.detach().double() for k, v in y.items()}
        loss = 0
        for k, v in y.items():
            scores = v.flatten(0, -2) if v.ndim == 3 else v
            if v.ndim == 4: scores = v.permute(0, 2, 3, 1).flatten(0, 2)
            part = nn.functional.cross_entropy(scores, torch.arange(len(scores)) * 7 % scores.shape[1])
            loss = loss + (part if k == "logits" else 0.3 * part)
        loss.backward()
        out = {"loss": loss.detach().reshape(1)}
        out |= {k: p.grad for k, p in model.named_parameters() if p.grad is not None}
        out |= {k: b for k, b in model.named_buffers() if b.is_floating_point() and "running" in k}
        return {k: v.detach().double() for k, v in out.items()}

    def compared(self, training):
        self.last = False
        exact = self.results(torch.float64, training)
        ways = []
        for mkldnn, last in [(True, False), (False, False), (True, True)]:
            self.last = last
            with torch.backends.mkldnn.flags(enabled=mkldnn):
                ways.append(self.results(torch.float32, training))
        return {k: (v, max(float((w[k] - v).abs().max()) for w in ways)) for k, v in exact.items()}

def sampled(value, error, most):
    """Some elements with their places, spread over the tensor."""
    flat = value.flatten()
    places = sorted({int(i) for i in np.linspace(0, len(flat) - 1, min(most, len(flat)))})
    return {"shape": list(value.shape), "at": places, "values": [float(f"{flat[i]:.10g}") for i in places],
            "largest": float(f"{flat.abs().max():.3g}"), "error": float(f"{error:.3g}")}

def case(name):
    c = Case(name)
    out = {"model": name, "gain": c.gain, "input": c.shape, "key": c.key}
    out["eval"] = {k: sampled(v, e, 40) for k, (v, e) in c.compared(False).items()}
    for k, (v, e) in c.compared(False).items():
        apart = float((v[0] - v[1]).abs().max())
        print(f"{name} {k}: largest {v.abs().max():.3g}, two inputs apart {apart:.3g}, error {e:.2g}", flush=True)
        if apart <= 100 * e: sys.exit(f"the results of {name} don't depend on the input")
    if c.step:
        step = c.compared(True)
        names = [k for k in step if "running" not in k and k != "loss"]
        chosen = {names[int(i)] for i in np.linspace(0, len(names) - 1, 12)}
        buffers = [k for k in step if "running" in k]
        chosen |= {buffers[int(i)] for i in np.linspace(0, len(buffers) - 1, 4)} if buffers else set()
        out["step_in_f64"] = name in IN_F64
        out["step"] = {k: sampled(*v, 6) for k, v in step.items() if k in chosen or k == "loss"}
        for k, v in out["step"].items():
            print(f"  {k}: largest {v['largest']:.3g}, error {v['error']:.2g}", flush=True)
    return out

def published(name):
    if name in VISION: return vision(name)
    return text(name) if name in TEXT else None

if __name__ == "__main__":
    path, *chosen = sys.argv[1:]
    if path == "--keys":
        print(listing(published(chosen[0])), end="")
        sys.exit()
    if path == "--folders":
        for kind, folder in [("GPT2LMHeadModel", "gpt2"), ("BertForMaskedLM", "bert")]:
            model = getattr(transformers, kind)
            _, report = model.from_pretrained(f"{chosen[0]}/{folder}", output_loading_info=True)
            print(kind, report)
            assert not any(report.values())
        sys.exit()
    cases = [*(n for n in VISION if VISION[n]), "vit", "unet", "gpt", *TEXT]
    old = json.load(open(path)) if chosen and os.path.exists(path) else {"keys": [], "cases": []}
    def write():
        rows = lambda part: ",\n".join(json.dumps(row, separators=(",", ":")) for row in old[part])
        open(path, "w").write('{"keys":[\n' + rows("keys") + '\n],\n"cases":[\n' + rows("cases") + "\n]}\n")
    for part, make, names in [("keys", lambda n: keys(n, published(n)), [*VISION, *TEXT]), ("cases", case, cases)]:
        for name in names:
            if name in chosen or not chosen:
                old[part] = [row for row in old[part] if row["model"] != name] + [make(name)]
                old[part].sort(key=lambda row: names.index(row["model"]))
                write()
