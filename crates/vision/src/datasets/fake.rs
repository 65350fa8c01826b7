//! Pictures of noise.

use crate::fault::invalid;
use crate::{Image, Mode};
use kiln_data::{Dataset, Rng};
use kiln_tensor::{Result, options};

options! {
    /// Random pictures with random labels, for trying programs out: torchvision's `FakeData`. The sample of an index
    /// is always the same.
    FakeData () {
        /// The number of samples.
        size: usize = 1000usize,
        /// Channels (1 to 4), height and width.
        image_size: [usize; 3] = [3usize, 224, 224],
        /// The number of classes.
        num_classes: usize = 10usize,
        /// The seed of the first sample.
        random_offset: u64 = 0u64,
    }
}

impl Dataset for FakeData {
    type Item = (Image, i64);
    fn len(&self) -> usize {
        self.size
    }
    #[track_caller]
    fn get(&self, index: usize) -> Result<(Image, i64)> {
        let [channels, height, width] = self.image_size;
        let mode = Mode::of_channels(channels);
        let area = (channels.max(1))
            .checked_mul(height)
            .and_then(|n| n.checked_mul(width));
        let (Some(mode), Some(area)) = (mode, area.filter(|_| index < self.size)) else {
            let message = format!(
                "there is no sample {index} of {} of the size {:?}",
                self.size, self.image_size
            );
            return Err(invalid("FakeData", message));
        };
        let mut rng = Rng::new(self.random_offset.wrapping_add(index as u64));
        let mut pixels = Vec::new();
        if pixels.try_reserve_exact(area).is_err() {
            let message = format!("there is no memory for {area} bytes");
            return Err(invalid("FakeData", message));
        }
        while pixels.len() < area {
            let random = rng.bits().to_le_bytes();
            pixels.extend_from_slice(&random[..random.len().min(area - pixels.len())]);
        }
        let label = rng.below(self.num_classes.max(1)) as i64;
        Ok((Image::from_bytes(pixels, width, height, mode)?, label))
    }
}
