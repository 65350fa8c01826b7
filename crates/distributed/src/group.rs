//! Process groups, and the world that this process or thread belongs to.

use crate::rendezvous::{self, Assignment};
use crate::transport::{DEFAULT_TIMEOUT, Transport};
use crate::{mpi, nccl, threads};
use kiln_base::collective::{self, Communicator};
use kiln_tensor::{DType, Device, Error, ErrorKind, Result, Tensor, Var, options};
use std::cell::RefCell;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

/// The folder of this crate's source, whose lines are not the user's.
pub(crate) const SOURCE: &str = {
    let this = file!();
    this.split_at(this.len() - "group.rs".len()).0
};

/// A world, as one of its processes or threads sees it.
pub(crate) struct Context {
    world: ProcessGroup,
    transport: Arc<dyn Transport>,
    /// The names of the groups that were made, this rank being in them or not.
    groups: Mutex<Vec<String>>,
}

/// A group of ranks, seen from one of them. Cloning gives another handle to the same group.
#[derive(Clone)]
pub struct ProcessGroup(Arc<Group>);

struct Group {
    /// The name in plans.
    name: Arc<str>,
    rank: usize,
    device: Device,
    /// The ranks in the world, by rank in the group.
    members: Vec<usize>,
    /// The token of all groups of this process: the last one's holder records the next operation.
    token: Arc<Mutex<Var>>,
}

impl std::fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "ProcessGroup({:?}, rank {})",
            self.0.members, self.0.rank
        )
    }
}

impl ProcessGroup {
    fn new(
        name: String,
        member: Arc<dyn Communicator>,
        members: Vec<usize>,
        (device, token): (Device, Arc<Mutex<Var>>),
    ) -> ProcessGroup {
        let rank = member.rank();
        collective::register(&name, member);
        ProcessGroup(Arc::new(Group {
            name: name.into(),
            rank,
            device,
            members,
            token,
        }))
    }

    /// This process's rank in the group.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.0.members.len()
    }

    /// The ranks in the world, by rank in the group (`get_process_group_ranks`).
    pub fn ranks(&self) -> &[usize] {
        &self.0.members
    }

    /// The device whose tensors this rank exchanges: the CPU over MPI, a GPU over NCCL.
    pub fn device(&self) -> Device {
        self.0.device
    }

    /// A tensor, on the group's device.
    #[track_caller]
    pub(crate) fn on_device(&self, x: Tensor) -> Tensor {
        x.to(self.0.device)
    }

    /// The name, and the number of ranks.
    pub(crate) fn name_and_size(&self) -> (&Arc<str>, usize) {
        (&self.0.name, self.size())
    }

    /// The token, which only the holder may take.
    pub(crate) fn token(&self) -> MutexGuard<'_, Var> {
        self.0.token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs every operation that was recorded so far.
    ///
    /// # Errors
    /// The error of one of them.
    #[track_caller]
    pub(crate) fn flush(&self) -> Result<()> {
        let token = self.token().get();
        token.to_vec::<i64>().map(drop)
    }
}

static PROCESS: RwLock<Option<Arc<Context>>> = RwLock::new(None);

thread_local! {
    static THREAD: RefCell<Option<Arc<Context>>> = const { RefCell::new(None) };
}

impl Context {
    pub(crate) fn new(
        world: Arc<dyn Communicator>,
        transport: Arc<dyn Transport>,
    ) -> Result<Arc<Context>> {
        let device = world.gpu().map_or(Ok(Device::Cpu), Device::cuda)?;
        // It is computed here: a failed run returns the cell to its last computed value.
        let token = Tensor::zeros([1], DType::I64).to(device);
        let token = Var::volatile(token.realize()?)?;
        let token = Arc::new(Mutex::new(token));
        // Threads that are ranks need names of their own, and a saved plan a name that the next run has too.
        let process = transport.is_process();
        let name = match process {
            true => "world".to_string(),
            false => format!("thread {}", threads::unique_number()),
        };
        let members = (0..world.ranks()).collect();
        Ok(Arc::new(Context {
            world: ProcessGroup::new(name, world, members, (device, token)),
            transport,
            groups: Mutex::default(),
        }))
    }

    /// Runs every operation that was recorded so far.
    ///
    /// # Errors
    /// The error of one of them.
    #[track_caller]
    pub(crate) fn flush(&self) -> Result<()> {
        self.world.flush()
    }

    /// Ends the world for this rank.
    pub(crate) fn end(&self) {
        collective::unregister(&self.world.0.name);
        self.groups()
            .drain(..)
            .for_each(|name| collective::unregister(&name));
    }

    fn groups(&self) -> MutexGuard<'_, Vec<String>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The world of a thread, for as long as it is alive.
pub(crate) struct Scope;

impl Scope {
    pub(crate) fn enter(context: Arc<Context>) -> Scope {
        THREAD.set(Some(context));
        Scope
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        if let Some(context) = THREAD.take() {
            context.end();
        }
    }
}

/// An error at the user's line.
#[track_caller]
pub(crate) fn error(called: &str, message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Value, called, message, Location::caller())
}

#[track_caller]
fn context() -> Result<Arc<Context>> {
    let thread = THREAD.with_borrow(Clone::clone);
    let process = || {
        PROCESS
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    };
    let none = || {
        error(
            "distributed",
            "there is no process group; call init_process_group first",
        )
    };
    thread.or_else(process).ok_or_else(none)
}

options! {
    /// The options of [`init_process_group_with`].
    Init () {
        /// The time after which a rank that does not take part in an operation is an error (default 30 minutes).
        timeout: Duration = DEFAULT_TIMEOUT,
        /// The number of ranks (default: the launcher's). For `mpi`, another one than the launcher's is an error.
        world_size: Option<usize> = None,
        /// This process's rank (default: the launcher's). For `mpi`, another one than the launcher's is an error.
        rank: Option<usize> = None,
        /// For `nccl`, where the ranks meet: `env://` (default), which is the variables `MASTER_ADDR`, `MASTER_PORT`,
        /// `RANK`, `WORLD_SIZE` and `LOCAL_RANK`, or those of a Slurm job; `tcp://host:port`, a port of rank 0's machine;
        /// `file:///path`, a file that all machines see.
        init_method: String = "",
        /// For `nccl`, the number of the GPU that this rank computes on (default: its number on this machine).
        device_id: Option<u32> = None,
    }
}

/// Begins communication between the processes that were started together
/// (`torch.distributed.init_process_group`). The backend is `mpi` on CPUs, whose world is that of `mpiexec`, `srun` or
/// `kiln launch`, or `nccl` on GPUs, whose ranks find each other as [`Init::init_method`] says. Started alone, the process
/// is the only rank, and no library is needed. A program that ends without [`destroy_process_group`] counts as failed.
///
/// ```
/// use kiln_distributed::{destroy_process_group, init_process_group, is_main, rank, world_size};
/// init_process_group("mpi")?;
/// if is_main()? {
///     println!("{} processes", world_size()?);
/// }
/// assert!(rank()? < world_size()?);
/// destroy_process_group()?;
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// If the backend is another one, its library is not found or has another ABI, a rank does not come, a group exists
/// already, or inside `compile`.
#[track_caller]
pub fn init_process_group(backend: &str) -> Result<()> {
    init_process_group_with(backend, Init::new())
}

/// [`init_process_group`] with all options.
///
/// # Errors
/// As [`init_process_group`], or if the launcher's numbers differ from those given.
#[track_caller]
pub fn init_process_group_with(backend: &str, options: Init) -> Result<()> {
    let loc = Location::caller();
    let wrong = |text: String| Error::new(ErrorKind::Value, "init_process_group", text, loc);
    match backend {
        "mpi" if !options.init_method.is_empty() => {
            let text = "the world of `mpi` is that of `mpiexec` or `srun`: leave `init_method` out";
            return Err(wrong(text.into()));
        }
        "mpi" | "nccl" => {}
        "gloo" => {
            let text = "there is no backend `gloo`; on CPUs, use `mpi`";
            return Err(wrong(text.into()));
        }
        other => {
            let text = format!("there is no backend `{other}`; use `mpi` on CPUs, `nccl` on GPUs");
            return Err(wrong(text));
        }
    }
    if is_initialized() {
        return Err(wrong("the process group exists already".into()));
    }
    let context = if backend == "nccl" {
        let assignment =
            Assignment::from_options(&options, &rendezvous::variable).map_err(wrong)?;
        let group = nccl::init(&assignment, options.device_id, options.timeout, true);
        let (world, transport) = group.map_err(wrong)?;
        Context::new(world, transport)?
    } else if mpi::launched() {
        let (world, transport) = mpi::init(options.timeout).map_err(wrong)?;
        Context::new(world, Arc::new(transport))?
    } else {
        let (world, transport) = threads::single_rank();
        Context::new(world, Arc::new(transport))?
    };
    let world = &context.world;
    let differs =
        |name: &str, option: Option<usize>, actual: usize| match option.filter(|g| *g != actual) {
            Some(option) => Err(wrong(format!(
                "{name} is {actual} by the launcher, and {option} is asked for"
            ))),
            None => Ok(()),
        };
    let fits = differs("world_size", options.world_size, world.size())
        .and_then(|()| differs("rank", options.rank, world.rank()));
    if let Err(e) = fits {
        context.end();
        return Err(e);
    }
    *PROCESS.write().unwrap_or_else(PoisonError::into_inner) = Some(context);
    Ok(())
}

/// True between [`init_process_group`] and [`destroy_process_group`].
pub fn is_initialized() -> bool {
    context().is_ok()
}

/// True if `init_process_group("mpi")` finds an MPI (`torch.distributed.is_mpi_available`).
pub fn is_mpi_available() -> bool {
    mpi::find().is_ok()
}

/// True if `init_process_group("nccl")` finds NCCL (`torch.distributed.is_nccl_available`).
pub fn is_nccl_available() -> bool {
    kiln_runtime::cuda::nccl().is_ok()
}

/// Runs the operations that are recorded, and ends communication.
///
/// # Errors
/// The error of one of these operations, or if there is no group.
#[track_caller]
pub fn destroy_process_group() -> Result<()> {
    let context = context()?;
    let flushed = context.flush();
    let closed = match &flushed {
        Ok(()) => context.transport.close(),
        // After a fault, the library is left alone.
        Err(_) => Ok(()),
    };
    context.end();
    if THREAD.take().is_none() {
        *PROCESS.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
    flushed?;
    closed.map_err(|text| error("destroy_process_group", text))
}

/// The group of all ranks (`torch.distributed.group.WORLD`).
///
/// # Errors
/// If there is none.
#[track_caller]
pub fn world() -> Result<ProcessGroup> {
    Ok(context()?.world.clone())
}

/// This process's rank in the world (`torch.distributed.get_rank`).
///
/// # Errors
/// If there is no group.
#[track_caller]
pub fn rank() -> Result<usize> {
    Ok(world()?.rank())
}

/// The number of ranks (`torch.distributed.get_world_size`).
///
/// # Errors
/// If there is no group.
#[track_caller]
pub fn world_size() -> Result<usize> {
    Ok(world()?.size())
}

/// True on rank 0, which prints and saves.
///
/// # Errors
/// If there is no group.
#[track_caller]
pub fn is_main() -> Result<bool> {
    Ok(rank()? == 0)
}

/// Makes a group of some ranks (`torch.distributed.new_group`). All ranks of the world call it, with the same list;
/// `None` on those that are not in it. Ranks in the group are counted in the order of the list.
///
/// ```
/// use kiln_distributed::{ReduceOp, new_group, run_in_threads};
/// use kiln_tensor::Tensor;
/// let results = run_in_threads(3, |rank| {
///     let pair = new_group(&[0, 2])?;
///     let x = Tensor::from([rank as i64]);
///     pair.map(|pair| pair.all_reduce(&x, ReduceOp::Sum).item::<i64>()).transpose()
/// });
/// let sums = results.into_iter().collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(sums, [Some(2), None, Some(2)]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// If a rank is not in the world or comes twice, the ranks give different lists, or one does not come.
#[track_caller]
pub fn new_group(ranks: &[usize]) -> Result<Option<ProcessGroup>> {
    let context = context()?;
    let world = &context.world;
    let loc = Location::caller();
    let wrong = |text: String| Error::new(ErrorKind::Value, "new_group", text, loc);
    let size = world.size();
    for (i, rank) in ranks.iter().enumerate() {
        if *rank >= size {
            return Err(wrong(format!(
                "rank {rank} is none of the {size} of the world"
            )));
        }
        if ranks[..i].contains(rank) {
            return Err(wrong(format!("rank {rank} comes twice")));
        }
    }
    if ranks.is_empty() {
        return Err(wrong("a group needs a rank".into()));
    }
    let lists = world.all_gather_object(&ranks.to_vec())?;
    if let Some(other) = lists.iter().position(|list| list != ranks) {
        return Err(wrong(format!(
            "the ranks make different groups: rank {} makes {ranks:?}, rank {other} makes {:?}",
            world.rank(),
            lists[other]
        )));
    }
    let mut groups = context.groups();
    let number = groups.len() + 1;
    let name = format!("{} {number} {ranks:?}", world.0.name);
    groups.push(name.clone());
    if !ranks.contains(&world.rank()) {
        return Ok(None);
    }
    let member = context.transport.subgroup(ranks, number).map_err(wrong)?;
    let shared = (world.device(), world.0.token.clone());
    Ok(Some(ProcessGroup::new(
        name,
        member,
        ranks.to_vec(),
        shared,
    )))
}
