//! Tests of register tiles and products against sums in f64, at every level that the machine has.

mod terms;

use super::tile::Call;
use super::{
    Accesses, Description, Kernel, PackedPanels, RegisterEpilogue, Right, RightSide, Rows, Tile,
    multiply,
};
use half::{bf16, f16};
use kiln_base::prim::Binary;
use kiln_base::{Compute, DType, Features, Instruction, Scalar};
use kiln_kernel::bind::bind;
use kiln_kernel::sums::Lane;
use kiln_kernel::view::{Arguments, View, ViewMut};
use kiln_plan::schedule::{lanes, max_rows};
use kiln_plan::tile::{Access, Arg, Inst, Reg, Stage, TileProgram};
use std::sync::Arc;

/// A generator of random numbers; all are small integers, so that sums are exact in any order.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n.max(1)
    }

    pub(super) fn numbers<T: Whole>(&mut self, n: usize) -> Vec<T> {
        (0..n).map(|_| T::of(self.below(9) as i32 - 4)).collect()
    }
}

pub(super) trait Whole: Lane + std::fmt::Debug {
    fn of(n: i32) -> Self;
    fn value(self) -> f64;
}
impl Whole for f32 {
    fn of(n: i32) -> f32 {
        n as f32
    }
    fn value(self) -> f64 {
        f64::from(self)
    }
}
impl Whole for f64 {
    fn of(n: i32) -> f64 {
        f64::from(n)
    }
    fn value(self) -> f64 {
        self
    }
}

/// Returns numbers as elements of a dtype at the end of some memory: their address, and that memory.
pub(super) fn stored<T: Whole>(numbers: &[T], dtype: DType) -> (*const u8, Vec<T>) {
    if dtype == T::DTYPE {
        let memory = numbers.to_vec();
        return (memory.as_ptr().cast(), memory);
    }
    let to = |x: &T| match dtype {
        DType::F16 => f16::from_f64(x.value()).to_bits(),
        _ => bf16::from_f64(x.value()).to_bits(),
    };
    let half_dtype: Vec<u16> = numbers.iter().map(to).collect();
    let mut memory = vec![T::ZERO; (2 * half_dtype.len()).div_ceil(size_of::<T>())];
    let behind = size_of_val(&memory[..]) - size_of_val(&half_dtype[..]);
    let at = ViewMut::of(&mut memory).cast::<u16>();
    at.copy(behind as i64 / 2, &half_dtype);
    (memory.as_ptr().cast::<u8>().wrapping_add(behind), memory)
}

/// The executor of a tile.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) enum By {
    Processor,
    /// An interpreter of emitted code, which fails if anything but the operands is accessed.
    Interpreter,
}

impl By {
    /// Computes what a description says: its operands are in `read`, addresses of these in `list`, and its results in
    /// `written` and `wide`.
    pub(super) fn run<T: Whole>(
        self,
        of: impl Into<Description>,
        call: &Call,
        (read, list): (&[&[T]], &[u64]),
        (written, wide): (&mut [T], &mut [f64]),
    ) {
        let of = of.into();
        if self == By::Processor {
            // SAFETY: the operands were made for the description.
            return unsafe { Kernel::of(of).unwrap().run(call) };
        }
        #[cfg(all(target_arch = "x86_64", not(portable), unix))]
        {
            let words = [
                call.left as u64,
                call.right as u64,
                call.out as u64,
                call.accesses as u64,
                call.taps as u64,
                call.tiles,
            ];
            let mut machine = kiln_x86_interpreter::Machine::new()
                .readable(&words)
                .readable(list);
            for x in read {
                machine = machine.readable(View::of(x).bytes().slice(0, size_of_val(*x) as i64));
            }
            let (len, mut written) = (size_of_val(written), ViewMut::of(written).bytes());
            let machine = machine.writable(written.slice_mut(0, len as i64));
            let mut machine = machine.writable(wide);
            machine.call(&of.emit(), &[words.as_ptr() as u64]).unwrap();
        }
    }
}

/// Returns the arguments of [`work`], of which only addresses are made.
pub(super) fn arguments<'a>(at: &'a [*mut u8], sizes: &'a [usize]) -> Arguments<'a> {
    // SAFETY: nothing reads or writes by them.
    unsafe { Arguments::new(at, sizes) }
}

pub(super) fn levels() -> impl Iterator<Item = Features> {
    Features::WIDTHS.into_iter().filter(|l| l.is_supported())
}

/// Returns random rows, side by side in lines.
fn some_rows(rng: &mut Rng, most: u8, left: impl Fn(usize) -> [usize; 2], size: usize) -> Rows {
    let count = 1 + rng.below(most.into());
    let across = 1 + rng.below(count);
    let apart = 1 + rng.below(2);
    let line = across * apart + rng.below(3);
    Rows {
        count: count as u8,
        across: across as u8,
        left: left(across).map(|n| (n * size) as i64),
        result: [apart as i64, line as i64],
    }
}

/// Returns the offset of row `r` from the first, and its row in the result.
fn row(rows: &Rows, r: usize) -> [usize; 2] {
    let (line, r) = (r / usize::from(rows.across), r % usize::from(rows.across));
    [rows.left, rows.result].map(|[apart, lines]| r * apart as usize + line * lines as usize)
}

/// Tests a tile of random sizes; the memory around its result must not change.
fn a_tile<T: Whole>(level: Features, rng: &mut Rng, by: By) {
    let lanes = usize::from(lanes(level, T::DTYPE));
    let vectors = 1 + rng.below(8);
    let columns = (vectors - 1) * lanes + 1 + rng.below(lanes);
    let size = T::DTYPE.size();
    let (taps, steps) = (rng.below(4), rng.below(11));
    let (step, gap) = (1 + rng.below(3), rng.below(3));
    let most = max_rows(level, Instruction::of_numbers(T::DTYPE), vectors as u8);
    let far = |across: usize| [steps * step + gap, across * (steps * step + gap) + gap];
    let rows = some_rows(rng, most, far, size);
    let count = usize::from(rows.count);
    let padded = rng.below(2) == 0;
    let adds = rng.below(2) == 0;
    let several = padded && T::DTYPE == DType::F32 && rng.below(2) == 0;
    let across = lanes * if several { vectors.min(2) } else { vectors };
    let (right, out) = (across + rng.below(3), columns + rng.below(5));
    let panel = ((taps * steps).max(1) + rng.below(2)) * right;
    // Padded operands have the whole last vector, others do not.
    let behind = if padded { vectors * lanes } else { columns };
    let [far, last] = row(&rows, count - 1);
    let reach = far / size + steps * step + 1;
    let list: Vec<i64> = (0..taps).map(|_| (rng.below(9) * size) as i64).collect();
    let a: Vec<T> = rng.numbers(reach + 9);
    let behind = if several {
        (vectors - 1) / 2 * panel + across
    } else {
        behind
    };
    let b: Vec<T> = rng.numbers(((taps * steps).max(1) - 1) * right + behind);
    let before: Vec<T> = rng.numbers((last + 1) * out + 7);
    let mut c = before.clone();
    let half_dtype = [None, Some(DType::F16), Some(DType::BF16)][rng.below(3)];
    let half_dtype = half_dtype.filter(|_| T::DTYPE == DType::F32 && padded);
    let of = half_dtype.unwrap_or(T::DTYPE);
    let (b_at, b_memory) = stored(&b, of);
    let right_side = RightSide {
        step: (right * of.size()) as i64,
        padded,
        half_dtype,
        panel: match several {
            true => (panel * of.size()) as i64,
            false => 0,
        },
        ahead: 64 * rng.below(3) as i64,
    };
    let instruction = (level, Instruction::of_numbers(T::DTYPE));
    let tile = Tile {
        step: (step * size) as i64,
        steps: steps as u32,
        taps: taps as u32,
        out: (out * size) as i64,
        adds,
        ..Tile::new(instruction, rows, columns as i64, right_side)
    };
    let call = Call {
        left: a.as_ptr().cast(),
        right: b_at,
        out: c.as_mut_ptr().cast(),
        accesses: std::ptr::null(),
        taps: list.as_ptr(),
        tiles: 1,
    };
    let words: Vec<u64> = list.iter().map(|n| *n as u64).collect();
    let call = Call {
        taps: words.as_ptr().cast(),
        ..call
    };
    let read: [&[T]; 2] = [&a, &b_memory];
    by.run(tile.clone(), &call, (&read, &words), (&mut c, &mut []));
    let mut expected: Vec<f64> = before.iter().map(|x| x.value()).collect();
    for r in 0..count {
        let [from, to] = row(&rows, r);
        for j in 0..columns {
            let sum = &mut expected[to * out + j];
            *sum = if adds { *sum } else { 0.0 };
            for t in 0..taps * steps {
                // One tap needs no list.
                let tap = if taps == 1 {
                    0
                } else {
                    list[t / steps] as usize
                };
                let x = a[(from + tap) / size + t % steps * step];
                *sum += x.value() * b[j / across * panel + t * right + j % across].value();
            }
        }
    }
    let found: Vec<f64> = c.iter().map(|x| x.value()).collect();
    assert_eq!(found, expected, "{tile:?}");
}

#[test]
fn tiles_of_any_size_are_sums_of_products() {
    for level in levels() {
        let mut rng = Rng(u64::from(level.bits()) + 1);
        for _ in 0..1500 {
            a_tile::<f32>(level, &mut rng, By::Processor);
            a_tile::<f64>(level, &mut rng, By::Processor);
        }
    }
}

#[test]
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
fn emitted_tiles_touch_nothing_but_their_operands() {
    for level in [Features::AVX2, Features::AVX512] {
        let mut rng = Rng(u64::from(level.bits()) + 3);
        for _ in 0..60 {
            a_tile::<f32>(level, &mut rng, By::Interpreter);
            a_tile::<f64>(level, &mut rng, By::Interpreter);
            a_finished_tile(level, &mut rng, By::Interpreter);
        }
    }
}

/// Interprets tiles of random sizes.
///
/// # Panics
/// If one is wrong.
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
pub fn some_tiles(seed: u64, level: Features) {
    let mut rng = Rng(seed);
    a_tile::<f32>(level, &mut rng, By::Interpreter);
    a_finished_tile(level, &mut rng, By::Interpreter);
}

/// Returns `max(sums · residual + bias, sums) - row`, in rows of `width` results, as an epilogue, in f32 and in f64.
pub(super) fn work(rows: i64, width: i64, heavy: bool) -> TileProgram {
    let access = |arg: u16, strides: [i64; 2]| Access {
        arg,
        offset: 0i64.into(),
        strides: strides.map(Into::into).to_vec(),
        bounds: vec![],
        fill: Scalar::Float(0.0),
    };
    let load = |dst: u16, access: u16| Inst::Load {
        dst: Reg(dst),
        access,
    };
    let binary = |op, dst: u16, a: u16, b: u16| Inst::Binary {
        op,
        dst: Reg(dst),
        a: Reg(a),
        b: Reg(b),
        site: 0,
    };
    let mut code = vec![load(0, 4), load(1, 0), load(2, 1), load(3, 2)];
    if heavy {
        // Many values are live at a time: more than there are registers beside the accumulators.
        code.extend((0..9).map(|i| binary(Binary::Add, 10 + i, 2, 20 + i)));
        code.extend((0..9).map(|i| binary(Binary::Sub, 30 + i, 10 + i, 20 + i)));
        code.extend((1..9).map(|i| binary(Binary::Max, 30, 30, 30 + i)));
        code.push(binary(Binary::Min, 2, 2, 30));
    }
    code.extend([
        binary(Binary::Mul, 4, 0, 2),
        binary(Binary::Add, 5, 4, 1),
        binary(Binary::Max, 6, 5, 0),
        binary(Binary::Sub, 7, 6, 3),
        Inst::Store {
            access: 3,
            src: Reg(7),
        },
        Inst::Convert {
            dst: Reg(8),
            a: Reg(7),
            from: DType::F32,
            to: DType::F64,
        },
        Inst::Store {
            access: 5,
            src: Reg(8),
        },
    ]);
    let arg = |written| Arg {
        dtype: DType::F32,
        written,
    };
    let wide = Arg {
        dtype: DType::F64,
        written: true,
    };
    let mut registers = vec![Compute::F32; 40];
    registers[8] = Compute::F64;
    TileProgram {
        name: "work".into(),
        axes: vec![rows.into(), width.into()],
        args: vec![
            arg(false),
            arg(false),
            arg(false),
            arg(true),
            wide,
            arg(false),
        ],
        accesses: vec![
            access(0, [0, 1]),
            access(1, [width, 1]),
            access(2, [1, 0]),
            access(3, [width, 1]),
            access(5, [width, 1]),
            access(4, [width, 1]),
        ],
        registers,
        constants: (0..9)
            .map(|i| (Reg(20 + i), Scalar::Float(f64::from(i) - 4.0)))
            .collect(),
        stages: vec![Stage {
            code,
            ..Stage::default()
        }],
        ..TileProgram::default()
    }
}

/// Tests a tile of random sizes at a random place in a result, with an epilogue.
fn a_finished_tile(level: Features, rng: &mut Rng, by: By) {
    let lanes = usize::from(lanes(level, DType::F32));
    let vectors = 1 + rng.below(3);
    let columns = (vectors - 1) * lanes + 1 + rng.below(lanes);
    let (steps, taps) = (rng.below(7), 1 + rng.below(2));
    let most = max_rows(level, Instruction::Vfmadd231ps, vectors as u8);
    let rows = some_rows(rng, most, |across| [steps, across * steps], 4);
    let count = usize::from(rows.count);
    let [_, last] = row(&rows, count - 1);
    let (above, before) = (rng.below(3), rng.below(4));
    let (height, width) = (
        above + last + 1 + rng.below(2),
        before + columns + rng.below(3),
    );
    let program = work(height as i64, width as i64, rng.below(2) == 0);
    let all = (height * width) as i64;
    let lens = [width as i64, all, height as i64, all, all, all];
    let bound = bind(&program, &[], &lens).unwrap();
    let epilogue = RegisterEpilogue::of(&bound, width as i64, level)
        .map(Arc::new)
        .unwrap();
    let a: Vec<f32> = rng.numbers((count + taps) * steps + 1);
    let b: Vec<f32> = rng.numbers(taps * steps * columns + 1);
    let bias: Vec<f32> = rng.numbers(width);
    let residual: Vec<f32> = rng.numbers(height * width);
    let each: Vec<f32> = rng.numbers(height);
    let mut out = vec![77.0f32; height * width];
    let mut wide = vec![77.0f64; height * width];
    let list: Vec<u64> = (0..taps).map(|t| (4 * t * steps) as u64).collect();
    let right = RightSide::of_matrix(4 * columns as i64);
    let tile = Tile {
        step: 4,
        steps: steps as u32,
        taps: taps as u32,
        epilogue: Some(epilogue.clone()),
        ..Tile::new(
            (level, Instruction::Vfmadd231ps),
            rows,
            columns as i64,
            right,
        )
    };
    let args = [
        bias.as_ptr(),
        residual.as_ptr(),
        each.as_ptr(),
        out.as_ptr(),
        wide.as_mut_ptr().cast(),
        std::ptr::null(),
    ];
    let args = args.map(|p| p.cast_mut().cast::<u8>());
    let sizes = lens.map(|len| len as usize * 8);
    let args = arguments(&args, &sizes);
    let mut accesses = Accesses::of(Some(&epilogue), &args);
    let accesses = accesses.at((above as i64, before as i64));
    let words = accesses.iter().map(|p| *p as u64);
    let numbers: Vec<u64> = list.iter().copied().chain(words).collect();
    let call = Call {
        left: a.as_ptr().cast(),
        right: b.as_ptr().cast(),
        out: std::ptr::null_mut(),
        accesses: numbers[taps..].as_ptr().cast(),
        taps: numbers.as_ptr().cast(),
        tiles: 1,
    };
    let read: [&[f32]; 5] = [&a, &b, &bias, &residual, &each];
    let written = (&mut out[..], &mut wide[..]);
    by.run(tile.clone(), &call, (&read, &numbers), written);
    for (i, found) in out.iter().enumerate() {
        let (r, j) = (i / width, i % width);
        let of_tile = (0..count).find(|t| above + row(&rows, *t)[1] == r);
        let of_tile = of_tile.filter(|_| (before..before + columns).contains(&j));
        let expected = match of_tile {
            Some(t) => {
                let from = row(&rows, t)[0] / 4;
                let terms = (0..taps * steps).map(|t| a[from + t] * b[t * columns + j - before]);
                let sum: f32 = terms.sum();
                (sum * residual[i] + bias[j]).max(sum) - each[r]
            }
            None => 77.0,
        };
        assert_eq!(*found, expected, "row {r}, column {j} of {tile:?}");
        assert_eq!(
            wide[i],
            f64::from(expected),
            "row {r}, column {j} of {tile:?}"
        );
    }
}

#[test]
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
fn work_on_sums_reads_and_writes_where_it_should() {
    for level in levels().filter(|l| *l != Features::BASELINE) {
        let mut rng = Rng(u64::from(level.bits()) + 11);
        for _ in 0..400 {
            a_finished_tile(level, &mut rng, By::Processor);
        }
    }
}

/// Tests a product of random sizes and strides.
fn a_product<T: Whole>(level: Features, rng: &mut Rng) {
    let size = |rng: &mut Rng, most: usize| match rng.below(3) {
        0 => rng.below(4),
        _ => rng.below(most),
    };
    let (m, n, k) = (size(rng, 40), size(rng, 80), size(rng, 60));
    let (m, k) = match rng.below(8) {
        0 => (m + 260, k),
        1 => (m, k + 600),
        _ => (m, k),
    };
    let mut matrix = |rows: usize, cols: usize| -> (Vec<T>, i64, i64) {
        match rng.below(3) {
            0 => (rng.numbers(rows * (cols + 2) + 16), (cols + 2) as i64, 1),
            1 => (rng.numbers(cols * (rows + 1) + 1), 1, (rows + 1) as i64),
            _ => (rng.numbers(rows * cols * 200 + 1), (cols * 100) as i64, 100),
        }
    };
    let (a, b) = (matrix(m, k), matrix(k, n));
    let adds = rng.below(2) == 0;
    let pitch = n + rng.below(3);
    let before: Vec<T> = rng.numbers(m * pitch + 1);
    let mut c = before.clone();
    let sizes = (m as i64, n as i64, k as i64);
    let (left, lies) = ((View::of(&a.0), a.1, a.2), (View::of(&b.0), b.1, b.2));
    let mut packed = PackedPanels::default();
    let right = match rng.below(3) {
        0 => {
            let of = (level, Instruction::of_numbers(T::DTYPE));
            packed.pack(of, lies, (sizes.2, sizes.1)).unwrap();
            Right::Packed(packed.panels().unwrap())
        }
        1 if b.2 == 1 => Right::Direct(lies),
        _ => Right::Strided(lies),
    };
    let to = (ViewMut::of(&mut c), pitch as i64);
    let parameters = (Instruction::of_numbers(T::DTYPE), level, None);
    multiply(parameters, sizes, to, left, right, adds).unwrap();
    for (i, found) in c.iter().enumerate() {
        let (r, j) = (i / pitch.max(1), i % pitch.max(1));
        let mut expected = before[i].value();
        if r < m && j < n {
            expected = if adds { expected } else { 0.0 };
            for t in 0..k {
                let x = a.0[r * a.1 as usize + t * a.2 as usize].value();
                expected += x * b.0[t * b.1 as usize + j * b.2 as usize].value();
            }
        }
        assert_eq!(
            found.value(),
            expected,
            "row {r}, column {j} of {sizes:?} at {level:?}"
        );
    }
}

#[test]
fn products_of_matrices_that_lie_anywhere_are_sums_of_products() {
    for level in levels() {
        let mut rng = Rng(u64::from(level.bits()) + 7);
        for _ in 0..120 {
            a_product::<f32>(level, &mut rng);
            a_product::<f64>(level, &mut rng);
        }
    }
}

#[test]
fn what_is_not_finite_reaches_its_row_and_column_alone() {
    for level in levels() {
        let (m, n, k) = (7usize, 37usize, 19usize);
        let (mut a, b) = (vec![1.0f32; m * k], vec![2.0f32; k * n]);
        a[3 * k + 4] = f32::NAN;
        a[5 * k] = f32::INFINITY;
        let mut c = vec![0.0f32; m * n];
        let sizes = (m as i64, n as i64, k as i64);
        let (left, right) = ((View::of(&a), k as i64, 1), (View::of(&b), n as i64, 1));
        let to = (ViewMut::of(&mut c), n as i64);
        let parameters = (Instruction::Vfmadd231ps, level, None);
        multiply(parameters, sizes, to, left, right.into(), false).unwrap();
        for (i, found) in c.iter().enumerate() {
            match i / n {
                3 => assert!(found.is_nan()),
                5 => assert_eq!(*found, f32::INFINITY),
                _ => assert_eq!(*found, 2.0 * k as f32),
            }
        }
    }
}

#[test]
fn distances_that_no_instruction_holds_are_walked_in_portable_code() {
    let by = (Features::AVX2, Instruction::Vfmadd231ps);
    let (rows, right) = (Rows::of_matrix(2, 1 << 40), RightSide::of_panel(32));
    let tile = Tile {
        step: 4,
        out: 32,
        ..Tile::new(by, rows, 8, right)
    };
    assert!(!Kernel::of(tile).unwrap().is_emitted());
}

#[test]
fn the_ends_of_rows_are_those_of_all_of_them() {
    for count in 0..12u8 {
        for across in 0..6 {
            for distances in [
                [3, 10],
                [-3, 10],
                [3, -10],
                [-3, -10],
                [0, 7],
                [5, 0],
                [9, 2],
            ] {
                let rows = Rows {
                    count,
                    across,
                    left: distances,
                    result: [1, 0],
                };
                let all = (0..count).map(|row| rows.left(row));
                let ends = all
                    .map(|at| [at; 2])
                    .reduce(|a, b| [a[0].min(b[0]), a[1].max(b[1])]);
                assert_eq!(
                    rows.ends(distances),
                    ends.unwrap_or_default(),
                    "{count} {across}"
                );
            }
        }
    }
}
