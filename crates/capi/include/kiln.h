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
 The flag to skip the verification of checksums; see `kiln_open`.
 */
#define KILN_TRUSTED 1

/*
 The status of a call. The numbers never change.
 */
typedef enum {
  /*
   Success.
   */
  KILN_OK = 0,
  /*
   An argument is null, not UTF-8, or out of range.
   */
  KILN_ARGUMENT = 1,
  /*
   A file can't be read or written.
   */
  KILN_IO = 2,
  /*
   The file is not a package, or is damaged.
   */
  KILN_DAMAGED = 3,
  /*
   The package, or its programs, are of a format that this library does not read.
   */
  KILN_FORMAT = 4,
  /*
   No such name exists.
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
   A run failed, because of its data or its device.
   */
  KILN_RUN = 8,
  /*
   A bug in the library.
   */
  KILN_INTERNAL = 9,
} KilnStatus;

/*
 An element type. The numbers never change.
 */
typedef enum {
  /*
   A byte, 0 or 1.
   */
  KILN_BOOL = 0,
  /*
   8 bits, unsigned.
   */
  KILN_U8 = 1,
  /*
   8 bits, signed.
   */
  KILN_I8 = 2,
  /*
   16 bits, signed.
   */
  KILN_I16 = 3,
  /*
   32 bits, signed.
   */
  KILN_I32 = 4,
  /*
   64 bits, signed.
   */
  KILN_I64 = 5,
  /*
   16 bits, unsigned.
   */
  KILN_U16 = 6,
  /*
   32 bits, unsigned.
   */
  KILN_U32 = 7,
  /*
   64 bits, unsigned.
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
  /*
   A float of 8 bits, OCP's E4M3.
   */
  KILN_F8_E4M3 = 13,
  /*
   A float of 8 bits, OCP's E5M2.
   */
  KILN_F8_E5M2 = 14,
  /*
   A float of 8 bits, E4M3 without infinities and -0.
   */
  KILN_F8_E4M3FNUZ = 15,
  /*
   A float of 8 bits, E5M2 without infinities and -0.
   */
  KILN_F8_E5M2FNUZ = 16,
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
 A tensor of the library.
 */
typedef struct KilnTensor KilnTensor;

/*
 A tensor of the caller: row-major and contiguous.
 */
typedef struct {
  /*
   Its elements, of any alignment.
   */
  void *data;
  /*
   The number of bytes.
   */
  size_t bytes;
  /*
   Its element type, a `KilnDType`.
   */
  int32_t dtype;
  /*
   The number of dims.
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
 The text of the last call on this thread that failed; empty if none did, and while the thread ends. It stays valid
 until the next call fails.
 */
const char *kiln_last_error(void);

/*
 The version of the library, such as `0.1.0`.
 */
const char *kiln_version(void);

/*
 Makes a tensor of the library with a copy of the caller's elements.

 # Safety
 `from` points to a view, whose pointers are valid for the sizes that it states; `to` points to memory for a
 pointer.
 */
KilnStatus kiln_tensor_new(const KilnView *from,
                           KilnTensor **to);

/*
 Describes a tensor. The pointers point to the library's memory, may only be read, and stay valid until the tensor
 is freed.

 # Safety
 `tensor` is one of the library's; `to` points to memory for a view.
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
 Opens a file. `flags` is 0, or `KILN_TRUSTED` to skip the verification of checksums. The file must not be written
 into while the package is open; replacing it by a new one is safe.

 # Safety
 `path` is a C string; `to` points to memory for a pointer.
 */
KilnStatus kiln_open(const char *path,
                     uint32_t flags,
                     KilnPackage **to);

/*
 Opens a package in memory, by copying it.

 # Safety
 `data` points to `bytes` bytes; `to` points to memory for a pointer.
 */
KilnStatus kiln_open_bytes(const void *data, size_t bytes, uint32_t flags, KilnPackage **to);

/*
 The description of a package as JSON: entries with their inputs and outputs, states, files. It stays valid until
 the package is freed. Null for a null package.

 # Safety
 `package` is null or one of the library's.
 */
const char *kiln_describe(const KilnPackage *package);

/*
 Frees a package. Its entries and tensors stay valid.

 # Safety
 It is null, or one of the library's that is not used any more.
 */
void kiln_package_free(KilnPackage *package);

/*
 Finds an asset. The bytes stay valid until the package is freed.

 # Safety
 `package` is one of the library's, `name` a C string; `data` and `bytes` point to memory for a pointer and a size.
 */
KilnStatus kiln_asset(const KilnPackage *package,
                      const char *name,
                      const void **data,
                      size_t *bytes);

/*
 Returns the current value of a state. Later runs do not change the tensor.

 # Safety
 `package` is one of the library's, `name` a C string; `to` points to memory for a pointer.
 */
KilnStatus kiln_state_get(const KilnPackage *package, const char *name, KilnTensor **to);

/*
 Sets the value of a state.

 # Safety
 `package` and `value` are the library's, `name` is a C string.
 */
KilnStatus kiln_state_set(const KilnPackage *package, const char *name, const KilnTensor *value);

/*
 Reads a named element of a state, such as `lr` of `optimizer.numbers`.

 # Safety
 `package` is one of the library's, `state` and `element` are C strings; `to` points to memory for a number.
 */
KilnStatus kiln_number_get(const KilnPackage *package,
                           const char *state,
                           const char *element,
                           double *to);

/*
 Changes a named element of a state.

 # Safety
 `package` is one of the library's, `state` and `element` are C strings.
 */
KilnStatus kiln_number_set(const KilnPackage *package,
                           const char *state,
                           const char *element,
                           double value);

/*
 Resets all states to their values in the file.

 # Safety
 `package` is one of the library's.
 */
KilnStatus kiln_state_reset(const KilnPackage *package);

/*
 Writes the states as a safetensors file, which atomically replaces an older one.

 # Safety
 `package` is one of the library's, `path` a C string.
 */
KilnStatus kiln_state_save(const KilnPackage *package, const char *path);

/*
 Sets all states from a safetensors file.

 # Safety
 `package` is one of the library's, `path` a C string.
 */
KilnStatus kiln_state_load(const KilnPackage *package, const char *path);

/*
 Writes the package with its current states, atomically replacing an older file.

 # Safety
 `package` is one of the library's, `path` a C string.
 */
KilnStatus kiln_save(const KilnPackage *package, const char *path);

/*
 Sets the number of threads that run kernels, for the whole process. Results never depend on it.
 */
KilnStatus kiln_set_threads(size_t threads);

/*
 Limits the bytes that the library may hold, without mapped files; 0 for no limit.
 */
KilnStatus kiln_set_memory_limit(size_t bytes);

/*
 Makes a tensor of the library from one of another library, which is handed over. Its `deleter` is called after the
 last use; until then it must not be written. It is used in place if it is row-major and aligned to 64 bytes, else
 copied and freed at once. After an error it still belongs to the caller.

 # Safety
 `from` points to a tensor whose pointers are valid for the sizes that it states; `to` points to memory for a
 pointer.
 */
KilnStatus kiln_tensor_from_dlpack(struct DLManagedTensor *from,
                                   KilnTensor **to);

/*
 The same for a tensor of DLPack 1.x.

 # Safety
 As of `kiln_tensor_from_dlpack`.
 */
KilnStatus kiln_tensor_from_dlpack_versioned(struct DLManagedTensorVersioned *from,
                                             KilnTensor **to);

/*
 Makes a tensor for another library, with a copy of the elements that it may write. Its `deleter` frees it.

 # Safety
 `tensor` is one of the library's; `to` points to memory for a pointer.
 */
KilnStatus kiln_tensor_to_dlpack(const KilnTensor *tensor,
                                 struct DLManagedTensor **to);

/*
 Makes a tensor of DLPack 1.0 for another library, without a copy: its flags say that it may only be read. The
 library's tensor may be freed before it. Its `deleter` frees it.

 # Safety
 As of `kiln_tensor_to_dlpack`.
 */
KilnStatus kiln_tensor_to_dlpack_versioned(const KilnTensor *tensor,
                                           struct DLManagedTensorVersioned **to);

/*
 Prepares an entry for runs.

 # Safety
 `package` is one of the library's, `name` a C string; `to` points to memory for a pointer.
 */
KilnStatus kiln_entry(const KilnPackage *package, const char *name, KilnEntry **to);

/*
 Frees an entry.

 # Safety
 It is null, or one of the library's that is not used any more.
 */
void kiln_entry_free(KilnEntry *entry);

/*
 Returns the number of inputs and of outputs of an entry.

 # Safety
 `entry` is one of the library's; `inputs` and `outputs` point to memory for a size.
 */
KilnStatus kiln_entry_counts(const KilnEntry *entry, size_t *inputs, size_t *outputs);

/*
 Returns the bytes that a run takes besides the weights, for these values of its symbolic sizes, in the order of
 the package's description.

 # Safety
 `entry` is one of the library's, `sizes` points to `count` numbers; `to` points to memory for a size.
 */
KilnStatus kiln_entry_memory(const KilnEntry *entry,
                             const int64_t *sizes,
                             size_t count,
                             size_t *to);

/*
 Runs an entry on tensors of the caller, in the order of its inputs. The results are tensors of the library, which
 the caller frees. `outputs` is filled only if the run succeeds.

 # Safety
 `entry` is one of the library's. `inputs` points to `input_count` views, whose pointers are valid for the sizes
 that they state, and `outputs` to memory for `output_count` pointers.
 */
KilnStatus kiln_run(const KilnEntry *entry,
                    const KilnView *inputs,
                    size_t input_count,
                    KilnTensor **outputs,
                    size_t output_count);

/*
 Runs an entry on tensors of the caller and copies the results into tensors of the caller, which must have the
 dtypes, shapes and bytes of the results. The state of the package changes even if results do not fit.

 # Safety
 `entry` is one of the library's. `inputs` and `outputs` point to `input_count` and `output_count` views, whose
 pointers are valid for the sizes that they state. The memory of the outputs is not used by anyone else meanwhile.
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
