//! The division of a convolution into tiles for [`Algorithm::Fft`](super::Algorithm::Fft).

/// A tile whose circular convolution computes some results of the convolution.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct FftTile {
    /// The inputs of a tile, down and across: powers of two; 1 down if the kernel has one row.
    pub inputs: [i64; 2],
    /// The results of a tile.
    pub results: [i64; 2],
    /// The tiles of an image.
    pub count: [i64; 2],
    /// The shape of a tile as a matrix during the transform, along its columns and then along its rows: the tile
    /// itself, or, if that is one row, the matrix whose concatenated rows it is.
    pub matrix: [i64; 2],
}

/// The lengths of a side of a matrix, as powers of two.
const SIDES: std::ops::RangeInclusive<u32> = 4..=7;

impl FftTile {
    /// The largest error bound, relative to that of a plain sum: that of the transforms and of a plain sum over
    /// channels.
    pub const GROWTH: f64 = 8.0;

    /// Returns the cheapest tile for the results and the taps of an image, down and across, and input and output
    /// channels. `None` if the error of every tile may be too large, as for few taps.
    pub fn new(outputs: [i64; 2], kernel: [i64; 2], channels: [i64; 2]) -> Option<FftTile> {
        let sides = || SIDES.map(|side| 1i64 << side);
        let pairs = sides().flat_map(|a| sides().map(move |b| [a, b]));
        let tiles = pairs.filter_map(|matrix| {
            let inputs = match kernel[0] {
                1 => [1, matrix[0] * matrix[1]],
                _ => matrix,
            };
            let results = [0, 1].map(|i| (inputs[i] - kernel[i] + 1).min(outputs[i]));
            let tile = FftTile {
                inputs,
                results,
                count: [0, 1].map(|i| (outputs[i] + results[i] - 1) / results[i].max(1)),
                matrix,
            };
            let legal = results.iter().all(|r| *r > 0)
                && tile.error_growth(kernel) + 1.0 <= FftTile::GROWTH;
            legal.then_some(tile)
        });
        tiles.min_by(|a, b| a.cost(channels).total_cmp(&b.cost(channels)))
    }

    /// Returns the number of elements of a tile.
    pub fn size(&self) -> i64 {
        self.matrix[0] * self.matrix[1]
    }

    /// Returns the factor by which the error bound exceeds that of a plain sum.
    ///
    /// In arithmetic of unit roundoff u, a transform of T numbers is off by at most log₂ T · η of its norm, where η =
    /// (1 + 4√2) · u (Higham, "Accuracy and Stability of Numerical Algorithms", theorem 24.2). Two transforms and one
    /// inverse of inputs up to a, two tiles at once, and K weights up to b give results that are off by 3 · log₂ T · η
    /// · √(2 T K) · a · b; a plain sum is off by at most u · K² · a · b.
    pub fn error_growth(&self, kernel: [i64; 2]) -> f64 {
        let (taps, len) = ((kernel[0] * kernel[1]) as f64, self.size() as f64);
        let eta = 1.0 + 4.0 * 2f64.sqrt();
        3.0 * len.log2() * eta * (2.0 * len / taps).sqrt() / taps
    }

    /// Returns the cost of an image in multiply-adds. A stage of a transform costs four multiply-adds per number, and
    /// two tiles are transformed at once.
    pub fn cost(&self, [inputs, outputs]: [i64; 2]) -> f64 {
        let (len, inputs, outputs) = (self.size() as f64, inputs as f64, outputs as f64);
        let tile = len * (2.0 * len.log2() * (inputs + outputs) + 2.0 * inputs * outputs);
        tile * (self.count[0] * self.count[1]) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_the_results_and_err_little() {
        for (outputs, kernel) in [
            ([1, 16000], [1, 400]),
            ([224, 224], [31, 31]),
            ([7, 50], [9, 13]),
            ([1, 1], [1, 9000]),
            ([3, 100], [1, 128]),
        ] {
            let tile = FftTile::new(outputs, kernel, [3, 5]).unwrap();
            for i in 0..2 {
                assert!(
                    tile.results[i] + kernel[i] - 1 <= tile.inputs[i],
                    "{tile:?}"
                );
                assert!(tile.count[i] * tile.results[i] >= outputs[i], "{tile:?}");
                assert!(
                    (tile.count[i] - 1) * tile.results[i] < outputs[i],
                    "{tile:?}"
                );
            }
            assert_eq!(tile.size(), tile.inputs[0] * tile.inputs[1]);
            assert!(tile.error_growth(kernel) + 1.0 <= FftTile::GROWTH);
        }
        for kernel in [[1, 1], [3, 3], [7, 7], [1, 31], [200, 200], [1, 20000]] {
            assert_eq!(FftTile::new([500, 500], kernel, [1, 1]), None, "{kernel:?}");
        }
    }
}
