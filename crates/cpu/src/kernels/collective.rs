//! Collective operations of processes.

use kiln_base::collective::{Call as CollectiveCall, start};
use kiln_kernel::collective::bytes;
use kiln_kernel::error::Result;
use kiln_kernel::work::{Call, LinkedKernel, Started};
use kiln_plan::Collective;

/// A collective operation with known sizes.
pub(super) struct CollectiveWork {
    of: Collective,
    bytes: [usize; 2],
}

impl CollectiveWork {
    pub(super) fn new(of: &Collective, values: &[i64], lens: &[i64]) -> Result<CollectiveWork> {
        Ok(CollectiveWork {
            of: of.clone(),
            bytes: bytes(of, values, lens)?,
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
        } = &self.of;
        let at = usize::from;
        let [given, bytes] = self.bytes;
        let part = CollectiveCall {
            kind: *kind,
            dtype: x.dtype,
            input: call.args.view::<u8>(at(x.arg)).slice(0, given as i64),
            output: bytes,
        };
        let request = start(group, *ranks, part).map_err(|text| call.failed(text))?;
        let count = call.args.view::<i64>(at(*token)).get(0);
        call.args
            .view_mut::<i64>(at(*next))
            .set(0, count.wrapping_add(1));
        let out = at(out.arg);
        Ok(Some(Started {
            request,
            out,
            bytes,
        }))
    }
}
