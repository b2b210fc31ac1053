//! NCCL from a full path. cudarc's own loader asks for `libnccl.so` and never for `libnccl.so.2`, so whoever wants a
//! library of a given path binds it like this.

pub use cudarc::nccl::sys::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId};
use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

fn library() -> &'static libloading::Library {
    static LIBRARY: OnceLock<libloading::Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let path = simcuda::place::folder().join("libnccl.so.2");
        // SAFETY: a library of this crate, whose loading does nothing.
        unsafe { libloading::Library::new(path) }.expect("the library loads")
    })
}

macro_rules! bind {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => {$(
        #[allow(non_snake_case, clippy::too_many_arguments)]
        pub unsafe fn $name($($arg: $ty),*) -> $out {
            type F = unsafe extern "C" fn($($ty),*) -> $out;
            // SAFETY: the signature of nccl.h; the caller keeps to its rules.
            unsafe { library().get::<F>(stringify!($name)).expect("it is exported")($($arg),*) }
        }
    )*};
}

type In = *const c_void;
type Out = *mut c_void;
type Ty = ncclDataType_t;
type Op = ncclRedOp_t;
type Code = ncclResult_t;

bind! {
    fn ncclGetUniqueId(id: *mut ncclUniqueId) -> Code;
    fn ncclCommInitRank(comm: *mut ncclComm_t, ranks: c_int, id: ncclUniqueId, rank: c_int) -> Code;
    fn ncclCommInitAll(comms: *mut ncclComm_t, count: c_int, devices: *const c_int) -> Code;
    fn ncclCommSplit(comm: ncclComm_t, color: c_int, key: c_int, new: *mut ncclComm_t, config: Out) -> Code;
    fn ncclCommCount(comm: ncclComm_t, count: *mut c_int) -> Code;
    fn ncclCommUserRank(comm: ncclComm_t, rank: *mut c_int) -> Code;
    fn ncclCommGetAsyncError(comm: ncclComm_t, error: *mut Code) -> Code;
    fn ncclCommDestroy(comm: ncclComm_t) -> Code;
    fn ncclCommAbort(comm: ncclComm_t) -> Code;
    fn ncclGetLastError(comm: ncclComm_t) -> *const c_char;
    fn ncclGroupStart() -> Code;
    fn ncclGroupEnd() -> Code;
    fn ncclAllReduce(send: In, recv: Out, n: usize, ty: Ty, op: Op, comm: ncclComm_t, stream: Out) -> Code;
    fn ncclReduceScatter(send: In, recv: Out, n: usize, ty: Ty, op: Op, comm: ncclComm_t, stream: Out) -> Code;
    fn ncclAllGather(send: In, recv: Out, n: usize, ty: Ty, comm: ncclComm_t, stream: Out) -> Code;
    fn ncclBroadcast(send: In, recv: Out, n: usize, ty: Ty, root: c_int, comm: ncclComm_t, stream: Out) -> Code;
    fn ncclSend(at: In, n: usize, ty: Ty, peer: c_int, comm: ncclComm_t, stream: Out) -> Code;
    fn ncclRecv(at: Out, n: usize, ty: Ty, peer: c_int, comm: ncclComm_t, stream: Out) -> Code;
}
