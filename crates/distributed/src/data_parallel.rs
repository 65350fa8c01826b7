//! Data parallel training in one process.

use crate::group::{SOURCE, error};
use kiln_nn::{Forward, Hooks, Module};
use kiln_tensor::{
    Device, Error, ErrorKind, Flat, Nest, Result, Tensor, cat, is_recording, on_behalf_of_caller,
    options, stack, to_each, warn, with_device, with_values,
};
use std::panic::Location;

options! {
    /// The options of [`DataParallel::with`].
    Replicas () {
        /// The numbers of the GPUs (default: all).
        device_ids: Option<Vec<u32>> = None,
        /// The number of the GPU that gets the output (default: the first of `device_ids`).
        output_device: Option<u32> = None,
        /// The dim along which inputs are split, and outputs joined (default 0).
        dim: i64 = 0i64,
    }
}

/// A model that computes on several GPUs of one process (`torch.nn.DataParallel`). Its parameters and buffers are on the
/// first GPU. Each call splits the tensors of the input along the batch, as [`Tensor::chunk`] does, copies the parameters to
/// the other GPUs, computes on all of them at the same time, and joins the outputs on the output device. The sums of the
/// gradients arrive on the first GPU. Without a GPU it is just the model. [`crate::DistributedDataParallel`] with a process
/// for each GPU is faster: it copies no parameters, and its step is one plan on each GPU.
///
/// - A batch of fewer parts than there are GPUs uses the first ones.
/// - Hooks of the model and of layers in it run once for each replica, in the order of the GPUs. Hooks of this wrapper run
///   once a call, around all of them, and hooks of a parameter once a backward pass, with the sum of its gradients.
/// - What layers assign, such as running statistics, is kept from the first GPU's replica alone.
/// - Outputs that are single numbers, such as losses, are joined to a vector. A warning says so.
///
/// ```
/// use kiln_distributed::DataParallel;
/// use kiln_nn::{Forward, Linear, Module};
/// use kiln_tensor::{DType, Device, Tensor};
/// let model = Linear::new(3, 2)?;
/// model.to(Device::best())?;
/// let model = DataParallel::new(model)?;
/// let y = model.call(Tensor::ones([5, 3], DType::F32));
/// y.sum(()).backward()?;
/// assert_eq!(y.shape()?, [5, 2]);
/// assert_eq!(model.module().weight.grad().unwrap().to_vec::<f32>()?, [5.0; 6]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Module)]
pub struct DataParallel<M: Module> {
    module: M,
    /// Empty where there is no GPU.
    #[skip]
    devices: Vec<Device>,
    #[skip]
    output: Device,
    #[skip]
    dim: i64,
    hooks: Hooks,
}

impl<M: Module> DataParallel<M> {
    /// Wraps a model for all GPUs.
    ///
    /// # Errors
    /// If a GPU can't be opened.
    #[track_caller]
    pub fn new(module: M) -> Result<DataParallel<M>> {
        DataParallel::with(module, Replicas::new())
    }

    /// Wraps a model. For a single GPU, the model is moved there.
    ///
    /// # Errors
    /// If a GPU is named twice or can't be opened, or none is named.
    #[track_caller]
    pub fn with(module: M, options: Replicas) -> Result<DataParallel<M>> {
        let loc = Location::caller();
        let wrong = |text: String| Err(Error::new(ErrorKind::Value, "DataParallel", text, loc));
        let count = Device::cuda_count();
        let mut ids = options.device_ids.unwrap_or((0..count).collect());
        if count == 0 {
            ids.clear();
        } else if ids.is_empty() {
            return wrong("device_ids names no GPU".into());
        }
        let mut devices = Vec::new();
        for id in ids {
            let device = Device::cuda(id)?;
            if devices.contains(&device) {
                return wrong(format!("device_ids names {device} twice"));
            }
            devices.push(device);
        }
        let main_device = devices.first().copied().unwrap_or_default();
        let output = match options.output_device.filter(|_| count > 0) {
            Some(id) => Device::cuda(id)?,
            None => main_device,
        };
        if devices.len() == 1 {
            module.to(main_device)?;
        }
        Ok(DataParallel {
            module,
            devices,
            output,
            dim: options.dim,
            hooks: Hooks::new(),
        })
    }

    /// The model.
    pub fn module(&self) -> &M {
        &self.module
    }

    /// The tensors of an input on each GPU that gets some.
    #[track_caller]
    fn scatter(&self, input: &[Tensor]) -> Result<Vec<Vec<Tensor>>> {
        let mut by_device: Vec<Vec<Tensor>> = Vec::new();
        for (i, t) in input.iter().enumerate() {
            if t.check()?.ndim() == 0 {
                let text = format!("input {i} is a single number, which can't be split");
                return Err(error("DataParallel", text));
            }
            let chunks = t.chunk(self.devices.len() as i64, self.dim);
            if i > 0 && chunks.len() != by_device.len() {
                let text = format!(
                    "input 0, {:?}, is split into {} parts along dim {}, and input {i}, {:?}, into {}",
                    input[0].dims(),
                    by_device.len(),
                    self.dim,
                    t.dims(),
                    chunks.len()
                );
                return Err(error("DataParallel", text));
            }
            by_device.resize(chunks.len(), Vec::new());
            for (inputs, chunk) in by_device.iter_mut().zip(chunks) {
                inputs.push(chunk.check()?.clone());
            }
        }
        if by_device.is_empty() {
            by_device.push(Vec::new());
        }
        Ok(by_device)
    }

    /// Errs unless everything that the model holds is on the first GPU.
    #[track_caller]
    fn check_devices(&self) -> Result<()> {
        let main_device = self.devices[0];
        let cells = [self.module.named_parameters(), self.module.named_buffers()].concat();
        match cells.iter().find(|(_, var)| var.device() != main_device) {
            None => Ok(()),
            Some((name, var)) => Err(error(
                "DataParallel",
                format!(
                    "the parameters and buffers of the model have to be on {main_device}, the first of device_ids, and `{name}` \
                     is on {}: call `to` before",
                    var.device()
                ),
            )),
        }
    }

    #[track_caller]
    fn run_replicas<I, O>(&self, input: I) -> Result<O>
    where
        M: Forward<I, O>,
        I: Nest<Owned = I> + 'static,
        O: Nest<Owned = O> + 'static,
    {
        if is_recording() {
            let text =
                "the replicas run as programs of their own: call the model outside of compile";
            return Err(error("DataParallel", text));
        }
        self.check_devices()?;
        let flat = Flat::of(&input);
        let inputs = self.scatter(flat.tensors())?;
        let (parameters, buffers) = (self.module.parameters(), self.module.buffers());
        let mut values = Vec::new();
        for (replica, (tensors, device)) in inputs.iter().zip(&self.devices).enumerate() {
            values.extend(tensors.iter().map(|t| (t.clone(), *device)));
            values.extend(parameters.iter().map(|p| (p.get(), *device)));
            // The first one has the model's own.
            if replica > 0 {
                values.extend(buffers.iter().map(|b| (b.detach(), *device)));
            }
        }
        let mut moved = to_each(&values)?.into_iter();
        drop(values);
        let mut outputs = Vec::new();
        for (replica, (tensors, device)) in inputs.iter().zip(&self.devices).enumerate() {
            let input = flat.build::<I>(moved.by_ref().take(tensors.len()));
            let extra_cells = if replica > 0 { &buffers[..] } else { &[] };
            let ids = parameters.iter().chain(extra_cells).map(|cell| cell.id());
            let values: Vec<(u64, Tensor)> = ids.zip(moved.by_ref()).collect();
            let call = || with_values(values, || self.module.try_call(input));
            let output: Result<O> = with_device(*device, call);
            outputs.push(
                output.map_err(|e| e.with_note(format!("in replica {replica} on {device}")))?,
            );
        }
        match outputs.len() {
            1 if self.devices.len() == 1 => Ok(outputs.remove(0)),
            _ => self.gather(&outputs),
        }
    }

    /// The outputs of the replicas as one.
    #[track_caller]
    fn gather<O: Nest<Owned = O>>(&self, outputs: &[O]) -> Result<O> {
        let flats: Vec<Flat> = outputs.iter().map(|y| Flat::of(y)).collect();
        let count = flats[0].tensors().len();
        if flats.iter().any(|f| f.tensors().len() != count) {
            let text = "the replicas return different numbers of tensors";
            return Err(error("DataParallel", text));
        }
        let tensors = flats.iter().flat_map(|f| f.tensors());
        let moves: Vec<(Tensor, Device)> = tensors.map(|t| (t.clone(), self.output)).collect();
        let moved = to_each(&moves)?;
        let gathered = (0..count).map(|i| {
            let pieces = moved.iter().skip(i).step_by(count);
            match moved[i].ndim() {
                0 => {
                    warn("DataParallel joins outputs that are single numbers to a vector");
                    stack(pieces, 0)
                }
                _ => cat(pieces, self.dim),
            }
        });
        let gathered: Vec<Tensor> = gathered.collect();
        gathered.iter().try_for_each(|t| t.check().map(drop))?;
        Ok(flats[0].build::<O>(gathered))
    }
}

impl<M, I, O> Forward<I, O> for DataParallel<M>
where
    M: Forward<I, O>,
    I: Nest<Owned = I> + 'static,
    O: Nest<Owned = O> + 'static,
{
    fn forward(&self, input: I) -> Result<O> {
        on_behalf_of_caller(SOURCE, || match self.devices.is_empty() {
            true => self.module.try_call(input),
            false => self.run_replicas(input),
        })
    }
}
