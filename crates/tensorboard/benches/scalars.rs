//! The time in which a million scalars are written. Nothing is asserted.

use kiln_tensor::Result;
use kiln_tensorboard::SummaryWriter;
use std::time::Instant;

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("kiln-scalars-{}", std::process::id()));
    for _ in 0..5 {
        let start = Instant::now();
        let writer = SummaryWriter::new(&folder)?;
        for step in 0..1_000_000 {
            writer.add_scalar("loss", 1.0 / (step + 1) as f64, step)?;
        }
        writer.close()?;
        println!("1,000,000 scalars: {:.2} s", start.elapsed().as_secs_f64());
    }
    std::fs::remove_dir_all(folder).ok();
    Ok(())
}
