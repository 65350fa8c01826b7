"""Makes torch_names.txt, the public names of PyTorch: `python torch_names.py FOLDER > torch_names.txt`.

FOLDER is `torch` of an unpacked wheel; nothing of it is run. A name is public if its module lists it in `__all__` or
gives it a documentation. Modules that are not looked into are names themselves.
"""
import ast, pathlib, re, sys

root = pathlib.Path(sys.argv[1])
names = set()

def text(path):
    return (root / path).read_text()

def add(module, found):
    for name in found:
        parts = root.joinpath(*module.split(".")[1:], name)
        is_module = module != "Tensor" and (parts.is_dir() or parts.with_suffix(".py").exists())
        if not name.startswith("_") and not is_module:
            names.add(f"{module}.{name}")

def listed(path):
    """The texts in assignments of `__all__`."""
    for node in ast.parse(text(path)).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if getattr(target, "id", "") == "__all__":
            yield from (c.value for c in ast.walk(node.value) if isinstance(c, ast.Constant))

def defined(path):
    """Functions, and what calls of functions make."""
    for node in ast.parse(text(path)).body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            yield from (t.id for t in node.targets if isinstance(t, ast.Name))

add("torch", re.findall(r"add_docstr\(\s*torch\.(\w+)", text("_torch_docs.py")))
add("torch", [*listed("functional.py"), *listed("__init__.py"), "e", "inf", "nan", "newaxis", "pi"])
add("Tensor", re.findall(r'add_docstr_all\(\s*"(\w+)"', text("_tensor_docs.py")))
for node in ast.parse(text("_tensor.py")).body:
    if getattr(node, "name", "") == "Tensor":
        add("Tensor", [f.name for f in node.body if isinstance(f, ast.FunctionDef) and ast.get_docstring(f)])
add("torch.nn", [*listed("nn/modules/__init__.py"), "Parameter", "Buffer", "UninitializedParameter", "UninitializedBuffer"])
helpers = ("has_torch_function", "boolean_dispatch", "assert_int_or_pair", "logger")
add("torch.nn.functional", [n for n in defined("nn/functional.py") if n[0].islower() and not n.startswith(helpers)])
add("torch.nn.init", defined("nn/init.py"))
for module in ["linalg", "special", "fft"]:
    add(f"torch.{module}", [*listed(f"{module}/__init__.py"), *re.findall(r"^(\w+) = _add_docstr", text(f"{module}/__init__.py"), re.M)])
for module in [
    "amp", "autograd", "autograd.functional", "autograd.graph", "cuda", "func", "nn.utils", "nn.utils.parametrizations",
    "nn.utils.parametrize", "nn.utils.prune", "nn.utils.rnn", "optim", "optim.lr_scheduler", "optim.swa_utils", "random",
    "signal.windows", "utils.data",
]:
    path = module.replace(".", "/")
    path = f"{path}/__init__.py" if (root / path).is_dir() else f"{path}.py"
    add(f"torch.{module}", listed(path) if "__all__" in text(path) else defined(path))
names.discard("torch.fft.Tensor")
names.update(["torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential"])
for module in [
    "accelerator", "ao", "compiler", "cpu", "distributed", "distributions", "export", "futures", "fx", "hub", "jit",
    "library", "masked", "monitor", "mps", "mtia", "multiprocessing", "nested", "onnx", "package", "profiler", "sparse",
    "xpu",
]:
    assert (root / module).exists() or (root / f"{module}.py").exists(), module
    names.add(f"torch.{module}")
print("\n".join(sorted(names)))
