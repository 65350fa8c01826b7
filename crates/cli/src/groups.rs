//! Named lists of workloads.

/// Groups: their names, descriptions and the texts of their members (see [`crate::spec`]).
pub const GROUPS: &[(&str, &str, &[&str])] = &[
    (
        "pointwise",
        "elementwise ops on 64 MiB",
        &["copy:16777216", "add:16777216", "gelu:16777216"],
    ),
    (
        "reductions",
        "sums, softmax and norms",
        &[
            "sum:4096x4096",
            "column_sum:4096x4096",
            "softmax:4096x4096",
            "layer_norm:8192x1024",
            "batch_norm:32x64x56x56",
        ],
    ),
    (
        "matmul",
        "square products",
        &[
            "matmul:256x256x256",
            "matmul:512x512x512",
            "matmul:1024x1024x1024",
            "matmul:2048x2048x2048",
        ],
    ),
    (
        "transformer",
        "the products of a transformer block of width 768, and its attention, for 1 and 8 sequences",
        &[
            "matmul:256,2048x768x2304",
            "matmul:256,2048x768x768",
            "matmul:256,2048x768x3072",
            "matmul:256,2048x3072x768",
            "matmul:1x768x3072",
            "attention:1,8x12x256x64",
        ],
    ),
    (
        "resnet50",
        "the convolutions of ResNet-50, for 1 and 8 images",
        &[
            "conv2d:1,8x3x224x224:64x7x7:s2:p3",
            "conv2d:1,8x64x56x56:64x1x1",
            "conv2d:1,8x64x56x56:64x3x3:p1",
            "conv2d:1,8x64x56x56:256x1x1",
            "conv2d:1,8x256x56x56:128x1x1",
            "conv2d:1,8x128x56x56:128x3x3:s2:p1",
            "conv2d:1,8x128x28x28:512x1x1",
            "conv2d:1,8x128x28x28:128x3x3:p1",
            "conv2d:1,8x256x14x14:256x3x3:p1",
            "conv2d:1,8x1024x14x14:256x1x1",
            "conv2d:1,8x512x7x7:512x3x3:p1",
            "conv2d:1,8x512x7x7:2048x1x1",
        ],
    ),
    (
        "mobilenet",
        "the convolutions of MobileNetV3-Small, for 1 and 8 images",
        &[
            "conv2d:1,8x3x224x224:16x3x3:s2:p1",
            "conv2d:1,8x16x112x112:16x3x3:s2:p1:g16",
            "conv2d:1,8x16x56x56:72x1x1",
            "conv2d:1,8x72x56x56:72x3x3:s2:p1:g72",
            "conv2d:1,8x96x28x28:96x5x5:s2:p2:g96",
            "conv2d:1,8x240x14x14:240x5x5:p2:g240",
            "conv2d:1,8x40x14x14:240x1x1",
            "conv2d:1,8x240x14x14:40x1x1",
            "conv2d:1,8x576x7x7:576x5x5:p2:g576",
            "conv2d:1,8x96x7x7:576x1x1",
        ],
    ),
    (
        "models",
        "networks, inference",
        &[
            "resnet50",
            "mobilenet",
            "unet",
            "encoder",
            "decoder",
            "lstm",
        ],
    ),
    (
        "training",
        "training steps",
        &["resnet18-step", "encoder-step"],
    ),
];

/// The names of the groups.
pub fn names() -> impl Iterator<Item = &'static str> {
    GROUPS.iter().map(|g| g.0)
}
