//! The memory of a container.

/// Returns the limit of the control group at the root, which a container has of its own; of version 2, or of 1.
pub(super) fn limit() -> usize {
    let files = ["memory.max", "memory/memory.limit_in_bytes"];
    let read = |file| std::fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok();
    // Without a limit, the text is `max`, or a number beyond every memory.
    let limit = files
        .into_iter()
        .find_map(|file| read(file)?.trim().parse().ok());
    limit.unwrap_or(usize::MAX)
}
