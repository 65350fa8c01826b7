//! Products of matrices and convolutions beside cuBLAS and cuDNN.

use super::{Case, randn, table};
use crate::{Failed, Report, Settings};
use kiln_tensor::{Conv, DType, Tensor};

const TYPES: [(DType, &str); 3] = [
    (DType::F32, "f32"),
    (DType::F16, "f16"),
    (DType::BF16, "bf16"),
];
/// Rows, columns and the length of the sums.
const MATRICES: [[usize; 3]; 3] = [[1024, 1024, 1024], [4096, 4096, 4096], [8192, 1024, 4096]];
/// Images, channels, results' channels, size and kernel.
const CONVOLUTIONS: [[usize; 5]; 3] = [
    [32, 64, 64, 56, 3],
    [32, 256, 256, 14, 3],
    [32, 256, 1024, 14, 1],
];

pub(crate) fn run(settings: &Settings, report: &mut Report) -> std::result::Result<(), Failed> {
    let device = settings.device;
    let small = settings.emulated();
    let matrices = TYPES.iter().flat_map(|t| MATRICES.map(|m| (t, m)));
    let products = matrices.map(|((dtype, name), [m, n, k])| {
        let name = format!("matmul {m}x{n}x{k} {name}");
        let [m, n, k] = if small { [65, 33, 40] } else { [m, n, k] };
        let inputs = vec![
            randn([m, k], *dtype, device)?,
            randn([k, n], *dtype, device)?,
        ];
        let case = Case::new(name, inputs, |x| Ok(vec![x[0].matmul(&x[1])]))?;
        Ok((case, 2.0 * (m * n * k) as f64))
    });
    let convolutions = TYPES.iter().flat_map(|t| CONVOLUTIONS.map(|c| (t, c)));
    let convolutions = convolutions.map(|((dtype, name), [n, c, o, size, kernel])| {
        let name = format!("conv2d {n}x{c}x{size}x{size}, {o} of {kernel}x{kernel}, {name}");
        let [n, c, o, size] = if small {
            [1, 6, 10, 7]
        } else {
            [n, c, o, size]
        };
        let inputs = vec![
            randn([n, c, size, size], *dtype, device)?,
            randn([o, c, kernel, kernel], *dtype, device)?,
        ];
        let padding = (kernel / 2) as i64;
        let conv = |x: &[Tensor]| Ok(vec![x[0].conv2d_with(&x[1], Conv::new().padding(padding))]);
        let case = Case::new(name, inputs, conv)?;
        Ok((
            case,
            2.0 * (n * o * size * size * c * kernel * kernel) as f64,
        ))
    });
    let rate = |time: f64, flops: f64| flops / time / 1e12;
    let cases = products.chain(convolutions);
    table(settings, report, "products", "TFLOP/s", cases, rate)
}
