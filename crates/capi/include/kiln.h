/* Kiln packages from C: see the README of Kiln. Written by cbindgen; `KILN_UPDATE_HEADER=1 cargo test -p kiln-capi`
 * writes it anew. */

#ifndef KILN_H
#define KILN_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
/* DLPack's own, whose header is `dlpack/dlpack.h`. */
struct DLManagedTensor;
struct DLManagedTensorVersioned;

/*
 Checksums are taken on trust; see `kiln_open`.
 */
#define KILN_TRUSTED 1

/*
 What a call gives. Numbers stay what they are.
 */
typedef enum {
  /*
   All is well.
   */
  KILN_OK = 0,
  /*
   An argument is null, no UTF-8, or out of range.
   */
  KILN_ARGUMENT = 1,
  /*
   A file can't be read or written.
   */
  KILN_IO = 2,
  /*
   The file is no package, or is damaged.
   */
  KILN_DAMAGED = 3,
  /*
   The package, or its programs, are of a format that this library does not read.
   */
  KILN_FORMAT = 4,
  /*
   There is nothing of this name.
   */
  KILN_MISSING = 5,
  /*
   Inputs, or the value of a state, do not fit.
   */
  KILN_VALUE = 6,
  /*
   Memory is short, or would be more than the limit.
   */
  KILN_MEMORY = 7,
  /*
   A run failed, by its data or by its device.
   */
  KILN_RUN = 8,
  /*
   A bug in the library.
   */
  KILN_INTERNAL = 9,
} KilnStatus;

/*
 An element type. Numbers stay what they are.
 */
typedef enum {
  /*
   A byte, 0 or 1.
   */
  KILN_BOOL = 0,
  /*
   8 bits without a sign.
   */
  KILN_U8 = 1,
  /*
   8 bits with a sign.
   */
  KILN_I8 = 2,
  /*
   16 bits with a sign.
   */
  KILN_I16 = 3,
  /*
   32 bits with a sign.
   */
  KILN_I32 = 4,
  /*
   64 bits with a sign.
   */
  KILN_I64 = 5,
  /*
   16 bits without a sign.
   */
  KILN_U16 = 6,
  /*
   32 bits without a sign.
   */
  KILN_U32 = 7,
  /*
   64 bits without a sign.
   */
  KILN_U64 = 8,
  /*
   IEEE half precision.
   */
  KILN_F16 = 9,
  /*
   The upper half of a `KILN_F32`.
   */
  KILN_BF16 = 10,
  /*
   IEEE single precision.
   */
  KILN_F32 = 11,
  /*
   IEEE double precision.
   */
  KILN_F64 = 12,
} KilnDType;

/*
 An entry that is ready to run.
 */
typedef struct KilnEntry KilnEntry;

/*
 An open package.
 */
typedef struct KilnPackage KilnPackage;

/*
 A tensor of the library's.
 */
typedef struct KilnTensor KilnTensor;

/*
 A tensor of the caller's: row-major and contiguous.
 */
typedef struct {
  /*
   Its elements, of any alignment.
   */
  void *data;
  /*
   How many bytes there are.
   */
  size_t bytes;
  /*
   Its element type, a `KilnDType`.
   */
  int32_t dtype;
  /*
   How many dims it has.
   */
  uint32_t rank;
  /*
   Its extents, outermost first.
   */
  const int64_t *shape;
} KilnView;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 The text of the last call on this thread that failed; empty if none did. It stays until the next call fails.
 */
const char *kiln_last_error(void);

/*
 The version of the library, such as `0.1.0`.
 */
const char *kiln_version(void);

/*
 A tensor of the library's with a copy of the caller's elements.

 # Safety
 `from` leads to a view, whose pointers lead to as much as it says; `to` leads to memory for a pointer.
 */
KilnStatus kiln_tensor_new(const KilnView *from,
                           KilnTensor **to);

/*
 What a tensor holds. The pointers lead to the library's memory, are only read, and stay until the tensor is freed.

 # Safety
 `tensor` is one of the library's; `to` leads to memory for a view.
 */
KilnStatus kiln_tensor_view(const KilnTensor *tensor,
                            KilnView *to);

/*
 Frees a tensor.

 # Safety
 It is null, or one of the library's that is not used any more.
 */
void kiln_tensor_free(KilnTensor *tensor);

/*
 Opens a file. `flags` is 0, or `KILN_TRUSTED`, with which the file is not compared with its checksums. The file
 must not be written into while the package is open; replacing it by a new one is safe.

 # Safety
 `path` is a text; `to` leads to memory for a pointer.
 */
KilnStatus kiln_open(const char *path,
                     uint32_t flags,
                     KilnPackage **to);

/*
 Opens a package that is in memory, of which it makes a copy.

 # Safety
 `data` leads to so many bytes; `to` leads to memory for a pointer.
 */
KilnStatus kiln_open_bytes(const void *data, size_t bytes, uint32_t flags, KilnPackage **to);

/*
 What the package says of itself, as JSON: entries with their inputs and outputs, states, files. It stays until the
 package is freed. Null for a package that is null.

 # Safety
 `package` is null or one of the library's.
 */
const char *kiln_describe(const KilnPackage *package);

/*
 Frees a package. Entries and tensors of it stay.

 # Safety
 It is null, or one of the library's that is not used any more.
 */
void kiln_package_free(KilnPackage *package);

/*
 An asset. The bytes stay until the package is freed.

 # Safety
 `package` is one of the library's, `name` a text; `data` and `bytes` lead to memory for a pointer and a size.
 */
KilnStatus kiln_asset(const KilnPackage *package,
                      const char *name,
                      const void **data,
                      size_t *bytes);

/*
 What a state holds now. Later runs do not change the tensor.

 # Safety
 `package` is one of the library's, `name` a text; `to` leads to memory for a pointer.
 */
KilnStatus kiln_state_get(const KilnPackage *package, const char *name, KilnTensor **to);

/*
 Makes a state hold a tensor.

 # Safety
 `package` and `value` are the library's, `name` is a text.
 */
KilnStatus kiln_state_set(const KilnPackage *package, const char *name, const KilnTensor *value);

/*
 A number that is an element of a state, such as `lr` of `optimizer.numbers`.

 # Safety
 `package` is one of the library's, `state` and `element` are texts; `to` leads to memory for a number.
 */
KilnStatus kiln_number_get(const KilnPackage *package,
                           const char *state,
                           const char *element,
                           double *to);

/*
 Changes a number that is an element of a state.

 # Safety
 `package` is one of the library's, `state` and `element` are texts.
 */
KilnStatus kiln_number_set(const KilnPackage *package,
                           const char *state,
                           const char *element,
                           double value);

/*
 Makes all states hold what the file holds.

 # Safety
 `package` is one of the library's.
 */
KilnStatus kiln_state_reset(const KilnPackage *package);

/*
 Writes the states as a safetensors file, which replaces an older one whole.

 # Safety
 `package` is one of the library's, `path` a text.
 */
KilnStatus kiln_state_save(const KilnPackage *package, const char *path);

/*
 Makes all states hold what a safetensors file holds.

 # Safety
 `package` is one of the library's, `path` a text.
 */
KilnStatus kiln_state_load(const KilnPackage *package, const char *path);

/*
 Writes the package with its states as they are now, which replaces an older one whole.

 # Safety
 `package` is one of the library's, `path` a text.
 */
KilnStatus kiln_save(const KilnPackage *package, const char *path);

/*
 Sets how many threads run kernels, for the whole process. Results never depend on it.
 */
KilnStatus kiln_set_threads(size_t threads);

/*
 Limits the bytes that the library may hold, mapped files not among them; 0 for no limit.
 */
KilnStatus kiln_set_memory_limit(size_t bytes);

/*
 A tensor of the library's that holds one of another library's, which is handed over: it is freed by its `deleter`
 with the last use, and until then nobody writes it. It is read where it lies if it is row-major and aligned to 64
 bytes, else copied and freed at once. After an error it is still the caller's.

 # Safety
 `from` leads to a tensor whose pointers lead to as much as it says; `to` leads to memory for a pointer.
 */
KilnStatus kiln_tensor_from_dlpack(struct DLManagedTensor *from,
                                   KilnTensor **to);

/*
 The same of a tensor of DLPack 1.x.

 # Safety
 As of `kiln_tensor_from_dlpack`.
 */
KilnStatus kiln_tensor_from_dlpack_versioned(struct DLManagedTensorVersioned *from,
                                             KilnTensor **to);

/*
 A tensor for another library, with a copy of the elements that it may write. Its `deleter` frees it.

 # Safety
 `tensor` is one of the library's; `to` leads to memory for a pointer.
 */
KilnStatus kiln_tensor_to_dlpack(const KilnTensor *tensor,
                                 struct DLManagedTensor **to);

/*
 A tensor for another library, of DLPack 1.0, without a copy: it is only read, as its flags say. The library's
 tensor may be freed before it. Its `deleter` frees it.

 # Safety
 As of `kiln_tensor_to_dlpack`.
 */
KilnStatus kiln_tensor_to_dlpack_versioned(const KilnTensor *tensor,
                                           struct DLManagedTensorVersioned **to);

/*
 Makes an entry ready to run.

 # Safety
 `package` is one of the library's, `name` a text; `to` leads to memory for a pointer.
 */
KilnStatus kiln_entry(const KilnPackage *package, const char *name, KilnEntry **to);

/*
 Frees an entry.

 # Safety
 It is null, or one of the library's that is not used any more.
 */
void kiln_entry_free(KilnEntry *entry);

/*
 How many inputs and outputs an entry has.

 # Safety
 `entry` is one of the library's; `inputs` and `outputs` lead to memory for a size.
 */
KilnStatus kiln_entry_counts(const KilnEntry *entry, size_t *inputs, size_t *outputs);

/*
 The bytes that a run takes beside the weights, for these values of its symbolic sizes, in the order in which the
 package describes them.

 # Safety
 `entry` is one of the library's, `sizes` leads to so many numbers; `to` leads to memory for a size.
 */
KilnStatus kiln_entry_memory(const KilnEntry *entry,
                             const int64_t *sizes,
                             size_t count,
                             size_t *to);

/*
 Runs an entry on tensors of the caller's, in the order of its inputs, and gives tensors of the library's, which the
 caller frees. `outputs` is filled where the run succeeds.

 # Safety
 `entry` is one of the library's, `inputs` leads to so many views, whose pointers lead to as much as they say, and
 `outputs` to memory for so many pointers.
 */
KilnStatus kiln_run(const KilnEntry *entry,
                    const KilnView *inputs,
                    size_t input_count,
                    KilnTensor **outputs,
                    size_t output_count);

/*
 Runs an entry on tensors of the caller's and copies the results into tensors of the caller's, whose dtypes, shapes
 and bytes must be theirs. The state of the package is changed even where results do not fit.

 # Safety
 `entry` is one of the library's, `inputs` and `outputs` lead to so many views, whose pointers lead to as much as
 they say; nobody else uses what the outputs lead to meanwhile.
 */
KilnStatus kiln_run_into(const KilnEntry *entry,
                         const KilnView *inputs,
                         size_t input_count,
                         const KilnView *outputs,
                         size_t output_count);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KILN_H */
