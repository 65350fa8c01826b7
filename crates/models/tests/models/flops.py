"""Writes flops.txt: the figures of torchinfo, fvcore and PyTorch's FlopCounterMode for torchvision's models.

pip install torch==2.15.0 torchvision torchinfo==1.8.0 fvcore==0.1.5.post20221221
python flops.py > flops.txt
"""
import logging
import warnings
import torch, torchvision
from torchinfo import summary
from fvcore.nn import FlopCountAnalysis
from torch.utils.flop_counter import FlopCounterMode

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
MODELS = [
    "alexnet", "vgg11_bn", "resnet18", "resnet50", "resnext50_32x4d", "densenet121", "squeezenet1_1",
    "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "shufflenet_v2_x1_0", "convnext_tiny",
    "googlenet", "inception_v3", "vit_b_16",
]
print("model parameters torchinfo_mult_adds torchinfo_output_bytes fvcore_flops flop_counter")
for name in MODELS:
    kw = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    model = torchvision.models.get_model(name, weights=None, **kw).eval()
    size = 299 if name == "inception_v3" else 224
    x = torch.rand(2, 3, size, size)
    s = summary(model, input_data=x, verbose=0, depth=10)
    f = FlopCountAnalysis(model, x)
    f.unsupported_ops_warnings(False); f.uncalled_modules_warnings(False)
    with FlopCounterMode(display=False) as c:
        model(x)
    print(name, s.total_params, s.total_mult_adds, s.total_output_bytes, int(f.total()), c.get_total_flops(), flush=True)

model = torchvision.models.resnet18(weights=None).eval()
print("\nlayer output parameters mult_adds")
for row in summary(model, input_data=torch.rand(2, 3, 64, 64), verbose=0, depth=10).summary_list:
    if row.is_leaf_layer:
        print(row.class_name, "x".join(map(str, row.output_size)), row.num_params, row.macs)
