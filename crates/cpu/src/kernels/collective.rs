//! Collective operations of processes.

use kiln_base::collective::{Call as CollectiveCall, start};
use kiln_kernel::collective::operand_sizes;
use kiln_kernel::error::Result;
use kiln_kernel::work::{Call, LinkedKernel, Started};
use kiln_plan::Collective;

/// A collective operation with known sizes.
pub(super) struct CollectiveWork {
    operation: Collective,
    bytes: [usize; 2],
}

impl CollectiveWork {
    pub(super) fn new(
        operation: &Collective,
        values: &[i64],
        lens: &[i64],
    ) -> Result<CollectiveWork> {
        Ok(CollectiveWork {
            operation: operation.clone(),
            bytes: operand_sizes(operation, values, lens)?,
        })
    }
}

impl LinkedKernel for CollectiveWork {
    fn start(&self, call: &Call<'_>) -> Result<Option<Started>> {
        let Collective {
            group,
            ranks,
            kind,
            x,
            token,
            out,
            next,
        } = &self.operation;
        let index = usize::from;
        let [input_bytes, output_bytes] = self.bytes;
        let part = CollectiveCall {
            kind: *kind,
            dtype: x.dtype,
            input: call
                .args
                .view::<u8>(index(x.arg))
                .slice(0, input_bytes as i64),
            output: output_bytes,
        };
        let request = start(group, *ranks, part).map_err(|text| call.error(text))?;
        let count = call.args.view::<i64>(index(*token)).get(0);
        call.args
            .view_mut::<i64>(index(*next))
            .set(0, count.wrapping_add(1));
        let out = index(out.arg);
        Ok(Some(Started {
            request,
            out,
            bytes: output_bytes,
        }))
    }
}
