//! Register tiles and products beside sums in f64, at every level that the machine has.

use super::{Call, Kernel, Left, Tile, lanes, most_rows, multiply};
use crate::sums::Lane;
use kiln_base::{DType, Level};

/// Random numbers, all of them whole and small, so that sums are exact in whatever order.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n.max(1)
    }

    fn numbers<T: Whole>(&mut self, n: usize) -> Vec<T> {
        (0..n).map(|_| T::of(self.below(9) as i32 - 4)).collect()
    }
}

trait Whole: Lane + std::fmt::Debug {
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

fn levels() -> impl Iterator<Item = Level> {
    Level::ALL.into_iter().filter(|l| l.is_supported())
}

/// A tile of random sizes; what lies around its result must stay as it is.
fn a_tile<T: Whole>(level: Level, rng: &mut Rng) {
    let lanes = usize::from(lanes(level, T::DTYPE));
    let vectors = 1 + rng.below(4);
    let columns = (vectors - 1) * lanes + 1 + rng.below(lanes);
    let listed = rng.below(2) == 0;
    let rows = 1 + rng.below(most_rows(level, vectors as u8, listed).into());
    let taps = if listed { rng.below(4) } else { 1 };
    let steps = rng.below(11);
    let padded = rng.below(2) == 0;
    let adds = rng.below(2) == 0;
    let (right, out) = (vectors * lanes + rng.below(3), columns + rng.below(5));
    let (row, step) = match rng.below(2) {
        0 => (steps + rng.below(3), 1),
        _ => (1, rows + rng.below(3)),
    };
    let size = T::DTYPE.size();
    // Padded operands have the vector behind the last column, others not.
    let behind = if padded { vectors * lanes } else { columns };
    let a: Vec<T> = match listed {
        true => rng.numbers(taps * rows * (steps + 1)),
        false => rng.numbers(rows * row + steps * step),
    };
    let b: Vec<T> = rng.numbers(((taps * steps).max(1) - 1) * right + behind);
    let before: Vec<T> = rng.numbers(rows * out + 7);
    let mut c = before.clone();
    let listed_rows = if listed { taps * rows } else { 0 };
    let list: Vec<*const T> = (0..listed_rows)
        .map(|i| a[i * (steps + 1)..].as_ptr())
        .collect();
    let left = match listed {
        true => Left::Listed,
        false => Left::Matrix {
            row: (row * size) as i64,
            step: (step * size) as i64,
        },
    };
    let tile = Tile {
        level,
        dtype: T::DTYPE,
        rows: rows as u8,
        columns: columns as u16,
        left,
        right: (right * size) as i64,
        padded,
        steps: steps as u32,
        ahead: 64 * rng.below(3) as i64,
        taps: taps as u32,
        out: (out * size) as i64,
        adds,
        finish: None,
    };
    let call = Call {
        left: if listed {
            list.as_ptr().cast()
        } else {
            a.as_ptr().cast()
        },
        right: b.as_ptr().cast(),
        out: c.as_mut_ptr().cast(),
        finish: std::ptr::null(),
    };
    // SAFETY: the operands were made for the tile.
    unsafe { Kernel::of(tile.clone()).unwrap().run(&call) };
    for (i, (found, old)) in c.iter().zip(&before).enumerate() {
        let (r, j) = (i / out, i % out);
        let mut expected = old.value();
        if r < rows && j < columns {
            expected = if adds { expected } else { 0.0 };
            for t in 0..taps * steps {
                let (tap, s) = (t / steps, t % steps);
                let x = match listed {
                    true => a[(tap * rows + r) * (steps + 1) + s],
                    false => a[r * row + s * step],
                };
                expected += x.value() * b[t * right + j].value();
            }
        }
        assert_eq!(found.value(), expected, "row {r}, column {j} of {tile:?}");
    }
}

#[test]
fn tiles_of_any_size_are_sums_of_products() {
    for level in levels() {
        let mut rng = Rng(level as u64 + 1);
        for _ in 0..1500 {
            a_tile::<f32>(level, &mut rng);
            a_tile::<f64>(level, &mut rng);
        }
    }
}

/// A product of random sizes and distances.
fn a_product<T: Whole>(level: Level, rng: &mut Rng) {
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
            0 => (rng.numbers(rows * (cols + 2) + 1), (cols + 2) as i64, 1),
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
    let (left, right) = ((a.0.as_ptr(), a.1, a.2), (b.0.as_ptr(), b.1, b.2));
    // SAFETY: the matrices have their elements.
    unsafe {
        multiply(
            level,
            sizes,
            (c.as_mut_ptr(), pitch as i64),
            left,
            right,
            adds,
        )
    }
    .unwrap();
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
        let mut rng = Rng(level as u64 + 7);
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
        let (left, right) = ((a.as_ptr(), k as i64, 1), (b.as_ptr(), n as i64, 1));
        // SAFETY: the matrices have their elements.
        unsafe { multiply(level, sizes, (c.as_mut_ptr(), n as i64), left, right, false) }.unwrap();
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
    let tile = Tile {
        level: Level::Avx2,
        dtype: DType::F32,
        rows: 2,
        columns: 8,
        left: Left::Matrix {
            row: 1 << 40,
            step: 4,
        },
        right: 32,
        padded: true,
        steps: 1,
        ahead: 0,
        taps: 1,
        out: 32,
        adds: false,
        finish: None,
    };
    assert!(matches!(Kernel::of(tile), Ok(Kernel::Portable(_))));
}
