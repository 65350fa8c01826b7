//! Sample kernels against f64 on the host: every result, under several orders of warps.

use crate::support::{Gpu, Random, assert_close};
use half::{bf16, f16};
use kiln_gpu_emulator::TensorMap;

/// erf by its series, or by the continued fraction of its complement.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / n as f64;
        sum += term / (2 * n + 1) as f64;
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

#[test]
fn pointwise() {
    let (mut gpu, mut random) = (Gpu::load("kernels/ew.ptx"), Random::new());
    let n = 10_007;
    let [a, b, c] = [3.0, 2.0, 1.0].map(|scale| random.floats(n, scale));
    gpu.array(&a);
    gpu.array(&b);
    gpu.array(&c);
    let out = gpu.empty::<f32>(n);
    gpu.number((n as i32).to_le_bytes());
    gpu.run("ew", [16, 1, 1], 256, 0).unwrap();
    let want: Vec<f64> = (0..n)
        .map(|i| {
            let x = (a[i] * b[i] + c[i]) as f64;
            0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2))
                + (-x * x).exp()
                + x.tanh()
                + (x.abs() + 1.0).ln()
                + 1.0 / (x * x + 1.0).sqrt()
                + x.sin() / (1.0 + x * x)
        })
        .collect();
    assert_close(&gpu.read(out, n), &want, 3e-6, 1e-5);
}

#[test]
fn pointwise_of_halves() {
    let (mut gpu, mut random) = (Gpu::load("kernels/ew_bf16.ptx"), Random::new());
    let (n, columns) = (8 * 1000, 80);
    let a: Vec<bf16> = random
        .floats(n, 4.0)
        .into_iter()
        .map(bf16::from_f32)
        .collect();
    let bias: Vec<bf16> = random
        .floats(columns, 1.0)
        .into_iter()
        .map(bf16::from_f32)
        .collect();
    gpu.array(&a);
    gpu.array(&bias);
    let out = gpu.empty::<f16>(n);
    gpu.number((n as i32 / 8).to_le_bytes())
        .number((columns as i32).to_le_bytes());
    gpu.run("ew_bf16", [(n as u32 / 8).div_ceil(128), 1, 1], 128, 0)
        .unwrap();
    let got: Vec<f32> = gpu
        .read::<f16>(out, n)
        .into_iter()
        .map(f16::to_f32)
        .collect();
    let want: Vec<f64> = (0..n)
        .map(|i| {
            let x = a[i].to_f64() + bias[i % columns].to_f64();
            f16::from_f64(x / (1.0 + (-x).exp())).to_f64() * 0.5 + 0.25
        })
        .collect();
    assert_close(&got, &want, 1e-3, 1.5e-3);
}

#[test]
fn softmax() {
    for seed in 0..4 {
        let (mut gpu, mut random) = (Gpu::load("kernels/softmax.ptx"), Random::new());
        gpu.options.seed = seed;
        let (rows, columns) = (16, 1031);
        let x = random.floats(rows * columns, 5.0);
        gpu.array(&x);
        let out = gpu.empty::<f32>(rows * columns);
        gpu.number((columns as i32).to_le_bytes());
        gpu.run("softmax", [rows as u32, 1, 1], 256, 0).unwrap();
        let mut want = Vec::new();
        for row in x.chunks(columns) {
            let largest = row.iter().fold(f32::MIN, |m, &v| m.max(v)) as f64;
            let sum: f64 = row.iter().map(|&v| (v as f64 - largest).exp()).sum();
            want.extend(row.iter().map(|&v| (v as f64 - largest).exp() / sum));
        }
        assert_close(&gpu.read(out, rows * columns), &want, 1e-9, 1e-5);
    }
}

/// `a[m, k] · b[k, n]`; `b` is stored transposed if `transposed`.
fn product(a: &[f64], b: &[f64], [m, n, k]: [usize; 3], transposed: bool) -> Vec<f64> {
    let b_at = |q: usize, j: usize| {
        if transposed {
            b[j * k + q]
        } else {
            b[q * n + j]
        }
    };
    (0..m * n)
        .map(|i| (0..k).map(|q| a[i / n * k + q] * b_at(q, i % n)).sum())
        .collect()
}

#[test]
fn product_through_shared_memory() {
    for seed in 0..3 {
        let (mut gpu, mut random) = (Gpu::load("kernels/matmul_smem.ptx"), Random::new());
        gpu.options.seed = seed;
        let [m, n, k] = [130, 150, 70];
        let (a, b) = (random.floats(m * k, 1.0), random.floats(k * n, 1.0));
        gpu.array(&a);
        gpu.array(&b);
        let out = gpu.empty::<f32>(m * n);
        for size in [m, n, k] {
            gpu.number((size as i32).to_le_bytes());
        }
        gpu.run("matmul_smem", [3, 3, 1], 256, 0).unwrap();
        let wide = |v: &[f32]| v.iter().map(|&x| x as f64).collect::<Vec<_>>();
        let want = product(&wide(&a), &wide(&b), [m, n, k], false);
        assert_close(&gpu.read(out, m * n), &want, 1e-5, 1e-5);
    }
}

/// Sizes of the tensor-core products, and their operands.
const SIZES: [usize; 3] = [128, 256, 192];

fn halves(random: &mut Random, n: usize) -> (Vec<bf16>, Vec<f64>) {
    let values: Vec<bf16> = random
        .floats(n, 1.0)
        .into_iter()
        .map(bf16::from_f32)
        .collect();
    let wide = values.iter().map(|v| v.to_f64()).collect();
    (values, wide)
}

#[test]
fn product_on_tensor_cores_of_a_warp() {
    for seed in 0..3 {
        let (mut gpu, mut random) = (Gpu::load("kernels/mma_bf16.ptx"), Random::new());
        gpu.options.seed = seed;
        let [m, n, k] = SIZES;
        let ((a, a_wide), (b, b_wide)) = (halves(&mut random, m * k), halves(&mut random, k * n));
        gpu.array(&a);
        gpu.array(&b);
        let out = gpu.empty::<f32>(m * n);
        for size in SIZES {
            gpu.number((size as i32).to_le_bytes());
        }
        let shared = 2 * 64 * 40 * 2 + 2 * 32 * 72 * 2;
        gpu.run("mma_bf16", [n as u32 / 64, m as u32 / 64, 1], 128, shared)
            .unwrap();
        let want = product(&a_wide, &b_wide, SIZES, false);
        assert_close(&gpu.read(out, m * n), &want, 1e-4, 1e-5);
    }
}

#[test]
fn products_on_tensor_cores_of_warpgroups() {
    for seed in 0..4 {
        let (mut gpu, mut random) = (Gpu::load("kernels/wgmma.ptx"), Random::new());
        gpu.options.seed = seed;
        let (got, want) = run_warpgroup_product(&mut gpu, &mut random).unwrap();
        assert_close(&got, &want, 1e-4, 1e-5);
        let mut gpu = Gpu::load("kernels/warpgroups.ptx");
        gpu.options.seed = seed;
        let (got, want) = run_warpgroups(&mut gpu, &mut random).unwrap();
        assert_close(&got, &want, 1e-4, 1e-5);
        let mut gpu = Gpu::load("kernels/clusters.ptx");
        gpu.options.seed = seed;
        let (got, want) = run_clusters(&mut gpu, &mut random).unwrap();
        assert_close(&got, &want, 1e-4, 1e-5);
    }
}

/// The result and the expected one.
type Products = Result<(Vec<f32>, Vec<f64>), Box<kiln_gpu_emulator::Fault>>;

pub fn run_warpgroup_product(gpu: &mut Gpu, random: &mut Random) -> Products {
    run_product(gpu, random, ("wgmma", SIZES), ([64, 128], 128, 2), 1)
}

pub fn run_warpgroups(gpu: &mut Gpu, random: &mut Random) -> Products {
    let sizes = [128, 64, 64 * 7];
    run_product(gpu, random, ("warpgroups", sizes), ([128, 64], 384, 3), 1)
}

pub fn run_clusters(gpu: &mut Gpu, random: &mut Random) -> Products {
    let sizes = [256, 128, 64 * 7];
    run_product(gpu, random, ("clusters", sizes), ([128, 64], 384, 3), 2)
}

/// Runs a kernel with blocks of so many threads, for tiles of `tile` and stages of 64 terms. Clusters share columns.
fn run_product(
    gpu: &mut Gpu,
    random: &mut Random,
    (kernel, sizes): (&str, [usize; 3]),
    (tile, threads, stages): ([usize; 2], u32, usize),
    cluster: usize,
) -> Products {
    let [m, n, k] = sizes;
    let ((a, a_wide), (b, b_wide)) = (halves(random, m * k), halves(random, n * k));
    for (values, rows, box_rows) in [(&a, m, tile[0]), (&b, n, tile[1] / cluster)] {
        let address = gpu.memory.allocate(2 * values.len());
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        gpu.memory.write(address, &bytes).unwrap();
        let (sizes, boxes) = ([k as u64, rows as u64], [64, box_rows as u32]);
        let map = TensorMap::new(address, 2, &sizes, &[2 * k as u64], &boxes, 3).unwrap();
        gpu.bytes(&map.to_bytes(), 64);
    }
    let out = gpu.empty::<f32>(m * n);
    gpu.number((n as i32).to_le_bytes())
        .number((k as i32).to_le_bytes());
    let grid = [(n / tile[1]) as u32, (m / tile[0]) as u32, 1];
    let shared = (stages * (tile[0] + tile[1]) * 128) as u32;
    gpu.run(kernel, grid, threads, shared)?;
    Ok((gpu.read(out, m * n), product(&a_wide, &b_wide, sizes, true)))
}

/// Tails of rows and columns are left out.
#[test]
fn stores_of_boxes() {
    for seed in 0..4 {
        let (mut gpu, mut random) = (Gpu::load("kernels/stores.ptx"), Random::new());
        (gpu.options.seed, gpu.options.traffic) = (seed, true);
        let (got, want) = run_stores(&mut gpu, &mut random).unwrap();
        assert_close(&got, &want, 0.0, 0.0);
    }
}

pub fn run_stores(gpu: &mut Gpu, random: &mut Random) -> Products {
    let [m, n] = [150, 200];
    let x = random.floats(m * n, 1.0);
    gpu.array(&x);
    let out = gpu.memory.allocate(2 * m * n);
    let (sizes, strides) = ([n as u64, m as u64], [2 * n as u64]);
    let map = TensorMap::new(out, 2, &sizes, &strides, &[64, 64], 3).unwrap();
    gpu.bytes(&map.to_bytes(), 64);
    gpu.number((m as i32).to_le_bytes())
        .number((n as i32).to_le_bytes());
    let statistics = gpu.run("stores", [3, 1, 1], 128, 0)?;
    let traffic = statistics.traffic;
    if gpu.options.traffic {
        assert_eq!(traffic.bulk_stored_bytes, 2 * (m * n) as u64);
        assert_eq!(traffic.wavefronts, traffic.ideal_wavefronts);
    }
    let wide = |x: &u16| bf16::from_bits(*x).to_f32();
    let got = gpu.read::<u16>(out, m * n).iter().map(wide).collect();
    let want = x.iter().map(|x| bf16::from_f32(*x).to_f64());
    Ok((got, want.collect()))
}

#[test]
fn atomics_votes_divergence_and_bytes() {
    for seed in 0..3 {
        let (mut gpu, mut random) = (Gpu::load("kernels/misc.ptx"), Random::new());
        gpu.options.seed = seed;
        let n = 2000;
        let x = random.integers(n, 1000);
        gpu.array(&x);
        gpu.number((n as i32).to_le_bytes());
        let histogram = gpu.array(&[0i32; 64]);
        let sum = gpu.array(&[0f32]);
        let odd = gpu.array(&[0u64]);
        let steps = gpu.array(&[0f64]);
        let pair = gpu.array(&[0u32]);
        let bytes = gpu.empty::<u8>(n);
        let reversed = gpu.empty::<i32>(n);
        let blocks = n.div_ceil(256) as u32;
        gpu.run("misc", [blocks, 1, 1], 256, 0).unwrap();

        let mut want_histogram = vec![0; 64];
        let collatz = |v: i32| {
            let (mut z, mut count) = (v as i64 + 1, 0);
            while z != 1 {
                z = if z % 2 == 1 { 3 * z + 1 } else { z / 2 };
                count += 1;
            }
            count
        };
        for &v in &x {
            want_histogram[v as usize % 64] += 1;
        }
        assert_eq!(gpu.read::<i32>(histogram, 64), want_histogram);
        let want_sum = x.iter().map(|&v| 1.0 / (v + 1) as f64).sum();
        assert_close(&gpu.read(sum, 1), &[want_sum], 0.0, 1e-5);
        assert_eq!(
            gpu.read::<u64>(odd, 1)[0],
            x.iter().filter(|&&v| v % 2 == 1).count() as u64
        );
        let want_steps: i32 = x.iter().map(|&v| collatz(v)).sum();
        assert_eq!(gpu.read::<f64>(steps, 1)[0], want_steps as f64);
        let halves = gpu.read::<u32>(pair, 1)[0];
        assert_eq!(f16::from_bits(halves as u16).to_f32(), blocks as f32);
        assert_eq!(
            f16::from_bits((halves >> 16) as u16).to_f32(),
            2.0 * blocks as f32
        );
        let want: Vec<u8> = x
            .iter()
            .map(|&v| (collatz(v) * (v & 7) % 7 + collatz(v)) as u8)
            .collect();
        assert_eq!(gpu.read::<u8>(bytes, n), want);
        let want: Vec<i32> = x
            .iter()
            .map(|&v| (v as u32).reverse_bits() as i32 >> 3)
            .collect();
        assert_eq!(gpu.read::<i32>(reversed, n), want);
    }
}

/// Registers hold 4 neighbours along k, the first with the lowest bits: of A in row `lane / 4` or 8 below, of B in column
/// `lane / 4`, from k = 4 · (`lane` % 4) on, or 16 behind.
#[test]
fn products_of_bytes_on_tensor_cores() {
    let random = &mut Random::new();
    for (types, k) in [("s8.s8", 32), ("u8.s8", 32), ("s8.u8", 32), ("u8.u8", 16)] {
        let (a_words, b_words) = (k / 8, k / 16);
        let list = |name: &str, n: usize| {
            let all: Vec<String> = (0..n).map(|i| format!("%{name}{i}")).collect();
            format!("{{{}}}", all.join(", "))
        };
        let load = |name: &str, n: usize| -> String {
            (0..n)
                .map(|i| format!("ld.global.u32 %{name}{i}, [%p{name}+{}];", 4 * i))
                .collect()
        };
        let mut gpu = Gpu::from_text(&format!(
            ".visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c) {{
                .reg .b32 %t, %a<4>, %b<2>, %c<4>; .reg .b64 %pa, %pb, %pc;
                ld.param.u64 %pa, [a]; ld.param.u64 %pb, [b]; ld.param.u64 %pc, [c];
                mov.u32 %t, %tid.x;
                mad.wide.u32 %pa, %t, {}, %pa;
                mad.wide.u32 %pb, %t, {}, %pb;
                mad.wide.u32 %pc, %t, 16, %pc;
                {}{}{}
                mma.sync.aligned.m16n8k{k}.row.col.s32.{types}.s32 {}, {}, {}, {};
                st.global.u32 [%pc], %c0; st.global.u32 [%pc+4], %c1;
                st.global.u32 [%pc+8], %c2; st.global.u32 [%pc+12], %c3;
                ret;
            }}",
            4 * a_words,
            4 * b_words,
            load("a", a_words),
            load("b", b_words),
            load("c", 4),
            list("c", 4),
            list("a", a_words),
            list("b", b_words),
            list("c", 4),
        ));
        let bytes = |random: &mut Random, n| -> Vec<u8> {
            let all = random.integers(n, 256).into_iter();
            all.map(|x| x as u8).collect()
        };
        let (a, b) = (bytes(random, 16 * k), bytes(random, 8 * k));
        let spread = |of: &[u8], words: usize, row: &dyn Fn(usize, usize) -> usize| -> Vec<u8> {
            let all = (0..32).flat_map(|lane| (0..words).map(move |i| (lane, i)));
            all.flat_map(|(lane, i)| {
                let behind = if words == 4 {
                    i / 2 * 16
                } else {
                    i * (k / 2) * (k / 32)
                };
                let from = row(lane, i) * k + lane % 4 * 4 + behind;
                of[from..from + 4].to_vec()
            })
            .collect()
        };
        gpu.array(&spread(&a, a_words, &|lane, i| lane / 4 + i % 2 * 8));
        gpu.array(&spread(&b, b_words, &|lane, _| lane / 4));
        let c: Vec<i32> = random.integers(128, 1 << 31);
        let out = gpu.array(&c);
        gpu.run("k", [1, 1, 1], 32, 0).unwrap();
        let wide = |x: u8, ty: &str| match ty {
            "s8" => i32::from(x as i8),
            _ => i32::from(x),
        };
        let (a_type, b_type) = types.split_once('.').unwrap();
        let got = gpu.read::<i32>(out, 128);
        for (at, (got, c)) in got.iter().zip(&c).enumerate() {
            let (lane, x) = (at / 4, at % 4);
            let (row, column) = (lane / 4 + x / 2 * 8, lane % 4 * 2 + x % 2);
            let each =
                (0..k).map(|q| wide(a[row * k + q], a_type) * wide(b[column * k + q], b_type));
            let want = c.wrapping_add(each.sum::<i32>());
            assert_eq!(*got, want, "{types}: row {row}, column {column}");
        }
    }
}

#[test]
fn products_of_halves_by_bytes() {
    let mut gpu = Gpu::from_text(
        ".visible .entry k(.param .u64 p) {
            .reg .b32 %a, %b, %c, %d; .reg .b64 %p;
            ld.param.u64 %p, [p];
            mov.u32 %a, 0xfffe0003;
            mov.u32 %b, 0x04030201;
            dp2a.lo.s32.u32 %c, %a, %b, 100;
            dp2a.hi.u32.u32 %d, %a, %b, 100;
            st.global.u32 [%p], %c;
            st.global.u32 [%p+4], %d;
            ret;
        }",
    );
    let out = gpu.empty::<u32>(2);
    gpu.run("k", [1, 1, 1], 1, 0).unwrap();
    let want = [100 + 3 - 4, 100 + 3 * 3 + 0xfffe * 4];
    assert_eq!(gpu.read::<u32>(out, 2), want);
}

/// Consecutive calls declare arguments of the same name and different sizes.
#[test]
fn arguments_of_one_name() {
    let call = |name: &str, ty: &str| {
        format!(
            "{{ .param .{ty} param0; .param .{ty} retval0;
               st.param.{ty} [param0], %{ty}; call.uni (retval0), {name}, (param0);
               ld.param.{ty} %{ty}, [retval0]; }}"
        )
    };
    let function = |name: &str, ty: &str| {
        format!(
            ".func (.param .{ty} r) {name}(.param .{ty} a) {{ .reg .{ty} %x;
               ld.param.{ty} %x, [a]; add.{ty} %x, %x, 1; st.param.{ty} [r], %x; ret; }}"
        )
    };
    let mut gpu = Gpu::from_text(&format!(
        "{}\n{}\n.visible .entry k(.param .u64 p) {{
            .reg .u32 %u32; .reg .u64 %u64, %p;
            ld.param.u64 %p, [p];
            mov.u64 %u64, 0x1ffffffff;
            mov.u32 %u32, 7;
            {}\n{}
            st.global.u64 [%p], %u64;
            st.global.u32 [%p+8], %u32;
            ret;
        }}",
        function("long", "u64"),
        function("short", "u32"),
        call("long", "u64"),
        call("short", "u32"),
    ));
    let out = gpu.empty::<u32>(3);
    gpu.run("k", [1, 1, 1], 1, 0).unwrap();
    assert_eq!(gpu.read::<u32>(out, 3), [0, 2, 8]);
}
