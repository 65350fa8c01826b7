//! Products of matrices and convolutions, channels last.

use super::{Case, table};
use crate::{Failed, Report, Settings};
use kiln_tensor::{Conv, DType, Grad, Tensor, grad_with};

const TYPES: [(DType, &str); 3] = [
    (DType::BF16, "bf16"),
    (DType::F16, "f16"),
    (DType::F32, "f32"),
];
/// Rows, columns and the length of the sums.
const MATRICES: [[usize; 3]; 5] = [
    [4096, 4096, 4096],
    [8192, 8192, 8192],
    [1024, 1024, 1024],
    [8192, 1024, 4096],
    [64, 4096, 4096],
];
/// Images, channels, results' channels, size and kernel.
const CONVOLUTIONS: [[usize; 5]; 4] = [
    [64, 64, 64, 56, 3],
    [64, 256, 256, 14, 3],
    [64, 256, 1024, 14, 1],
    [64, 512, 512, 7, 3],
];

pub(crate) fn run(settings: &Settings, report: &mut Report) -> Result<(), Failed> {
    let small = settings.emulated();
    let matrices = TYPES.iter().flat_map(|t| MATRICES.map(|m| (t, m)));
    let cases = matrices.map(|((dtype, name), [m, n, k])| {
        let name = format!("matmul {m}x{n}x{k} {name}");
        let [m, n, k] = if small { [65, 33, 40] } else { [m, n, k] };
        let operands = vec![(*dtype, vec![m, k]), (*dtype, vec![k, n])];
        let flops = 2.0 * (m * n * k) as f64;
        let bytes = ((m * k + k * n + m * n) * dtype.size()) as f64;
        Case {
            flops,
            product: Some([m, n, k]),
            ..Case::new(name, operands, bytes, |x| Ok(vec![x[0].matmul(&x[1])]))
        }
    });
    table(settings, report, "products", cases)
}

/// A convolution's passes: its result, and the gradients of image and weights.
const PASSES: [&str; 3] = ["forward", "gradient of images", "gradient of weights"];

pub(crate) fn convolutions(settings: &Settings, report: &mut Report) -> Result<(), Failed> {
    let small = settings.emulated();
    let combinations = TYPES[..1].iter().chain(&TYPES[2..]);
    let combinations = combinations.flat_map(|t| CONVOLUTIONS.map(|c| (t, c)));
    let combinations = combinations.flat_map(|(t, c)| [0, 1, 2].map(|pass| (t, c, pass)));
    let cases = combinations.map(|((dtype, name), [n, c, o, size, kernel], pass)| {
        let shown = PASSES[pass];
        let name =
            format!("conv2d {n}x{c}x{size}x{size}, {o} of {kernel}x{kernel}, {name}, {shown}");
        let [n, c, o, size] = if small {
            [1, 6, 10, 7]
        } else {
            [n, c, o, size]
        };
        let flops = 2.0 * (n * o * size * size * c * kernel * kernel) as f64;
        // Of image, weights and result each pass reads two and writes the third.
        let elements = n * size * size * (c + o) + o * c * kernel * kernel;
        let bytes = (elements * dtype.size()) as f64;
        let padding = (kernel / 2) as i64;
        // Images and their gradients lie channels last on both sides.
        let image = |channels: usize| (*dtype, vec![n, size, size, channels]);
        let weight = (*dtype, vec![o, c, kernel, kernel]);
        let mut operands = vec![image(c), weight];
        if pass > 0 {
            operands.push(image(o));
        }
        let case = Case::new(name, operands, bytes, move |x| {
            let channels_first = |t: &Tensor| t.permute([0, 3, 1, 2]);
            let last = |t: Tensor| t.permute([0, 2, 3, 1]);
            let leaves = [
                x[0].requires_grad_(pass == 1),
                x[1].requires_grad_(pass == 2),
            ];
            let options = Conv::new().padding(padding);
            let y = last(channels_first(&leaves[0]).conv2d_with(&leaves[1], options));
            match pass {
                0 => Ok(vec![y]),
                pass => grad_with(&y, vec![&leaves[pass - 1]], Grad::new().grad_outputs(&x[2])),
            }
        });
        Case { flops, ..case }
    });
    table(settings, report, "convolutions", cases)
}
