// A GPU, emulated on the CPU: generated CUDA source behind it, the driver's functions in front.
//
// Threads of a block are fibers that run one after the other from barrier to barrier, forwards or
// backwards: where the order matters, synchronisation is missing. Included by a file that defines
// the kernels and EMULATED_KERNELS; see emulated_cuda.py.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <csetjmp>
#include <functional>
#include <string>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <map>
#include <memory>
#include <vector>

struct Place { unsigned x, y, z; };
static Place threadIdx, blockIdx, blockDim, gridDim;

using half = _Float16;
using uint = unsigned;
struct float4 { float x, y, z, w; };
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
#define __global__
#define __launch_bounds__(n)
#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN
static float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
using std::isnan;
using std::isfinite;
template <class T> static T max(T a, T b) { return a > b ? a : b; }
template <class T> static T min(T a, T b) { return a < b ? a : b; }

namespace emulated {

constexpr size_t kStack = 1 << 16;

struct Fiber {
  jmp_buf place;
  ucontext_t entry;
  std::vector<char> stack;
  Place thread;
  bool is_started, is_done;
};

static std::vector<std::unique_ptr<Fiber>> fibers;  // used again by every block
static jmp_buf scheduler;
static Fiber* current;
static std::function<void()> body;
static std::vector<float> lanes;
static bool is_backwards = false;
static long n_launches = 0;

static void yield_fiber() {
  Fiber* self = current;
  if (!_setjmp(self->place)) _longjmp(scheduler, 1);
  threadIdx = self->thread;
}

static void live() {
  for (;;) {
    body();
    current->is_done = true;
    yield_fiber();
  }
}

static void resume(Fiber& f) {
  current = &f;
  threadIdx = f.thread;
  if (_setjmp(scheduler)) return;
  if (f.is_started) _longjmp(f.place, 1);
  f.is_started = true;
  f.stack.resize(kStack);
  getcontext(&f.entry);
  f.entry.uc_stack.ss_sp = f.stack.data();
  f.entry.uc_stack.ss_size = kStack;
  makecontext(&f.entry, live, 0);
  setcontext(&f.entry);
}

static size_t index_of(Place t) { return t.x + blockDim.x * (t.y + size_t(blockDim.y) * t.z); }

// Runs all threads of a block; each turn takes every one of them to its next barrier.
static void run_block() {
  size_t n = size_t(blockDim.x) * blockDim.y * blockDim.z;
  while (fibers.size() < n) fibers.push_back(std::make_unique<Fiber>());
  lanes.assign(n, 0.0f);
  for (size_t i = 0; i < n; ++i) {
    fibers[i]->thread = {unsigned(i % blockDim.x), unsigned(i / blockDim.x % blockDim.y),
                         unsigned(i / (size_t(blockDim.x) * blockDim.y))};
    fibers[i]->is_done = false;
  }
  for (size_t n_left = n; n_left;) {
    n_left = 0;
    for (size_t j = 0; j < n; ++j) {
      Fiber& f = *fibers[is_backwards ? n - 1 - j : j];
      if (f.is_done) continue;
      resume(f);
      n_left += !f.is_done;
    }
  }
}

static float exchange(float value, size_t source) {
  lanes[index_of(threadIdx)] = value;
  yield_fiber();
  float got = source < lanes.size() ? lanes[source] : value;
  yield_fiber();
  return got;
}

}  // namespace emulated

static void __syncthreads() { emulated::yield_fiber(); }
static unsigned __activemask() { return ~0u; }
static float __shfl_down_sync(unsigned, float value, int delta, int width) {
  size_t self = emulated::index_of(threadIdx), lane = self % width;
  return emulated::exchange(value, lane + delta < size_t(width) ? self + delta : self);
}
static float __shfl_sync(unsigned, float value, int lane, int width) {
  size_t self = emulated::index_of(threadIdx);
  return emulated::exchange(value, self - self % width + lane % width);
}

#include EMULATED_SOURCE

// The driver's functions that edgedec calls. Memory ends where a page ends that nobody may touch.

namespace emulated {

struct Kernel { const char* name; void (*run)(void**); bool has_barriers; int n_params; };
struct Node {  // what the driver copies of a kernel's parameters
  const Kernel* kernel;
  Place grid, block;
  std::vector<uint64_t> params;
};
struct Graph { std::vector<std::unique_ptr<Node>> nodes; size_t n_edges = 0; };
static const Kernel kernels[] = {EMULATED_KERNELS};
static std::map<uint64_t, std::pair<char*, size_t>> memory;
static size_t n_bytes_left = size_t(1) << 32;
static long n_graphs = 0;
static int fails_after = -1;  // launches until the device vanishes

static bool is_gone() { return fails_after >= 0 && n_launches >= fails_after; }

}  // namespace emulated

using namespace emulated;
enum { kOk = 0, kInvalid = 1, kNoMemory = 2, kNoDevice = 100, kNotFound = 500, kLost = 719 };

extern "C" {
void emulated_set_backwards(int value) { is_backwards = value; }
void emulated_set_memory(size_t n_bytes) { n_bytes_left = n_bytes; }
void emulated_fail_after(int n) { fails_after = n; n_launches = 0; }
long emulated_launches() { return n_launches; }
long emulated_allocations() { return long(memory.size()) + n_graphs; }

int cuInit(unsigned) { return kOk; }
int cuDriverGetVersion(int* version) { *version = 13000; return kOk; }
int cuDeviceGetCount(int* n) { *n = 1; return kOk; }
int cuDeviceGet(int* device, int index) { *device = index; return index ? kNoDevice : kOk; }
int cuDeviceGetName(char* name, int size, int) {
  snprintf(name, size, "emulated GPU");
  return kOk;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? 8 : attribute == 76 ? 7 : 0;
  return kOk;
}
int cuDeviceTotalMem_v2(size_t* n, int) { *n = size_t(1) << 32; return kOk; }
int cuDevicePrimaryCtxRetain(void** context, int) { *context = &memory; return kOk; }
int cuDevicePrimaryCtxRelease_v2(int) { return kOk; }
int cuCtxSetCurrent(void*) { return kOk; }
int cuCtxSynchronize() { return is_gone() ? kLost : kOk; }
int cuGetErrorString(int error, const char** text) {
  *text = error == kNoMemory ? "out of memory" : error == kLost ? "unspecified launch failure"
                                                                : "invalid value";
  return kOk;
}
int cuModuleLoadData(void** module, const void*) { *module = &memory; return kOk; }
int cuModuleUnload(void*) { return kOk; }
int cuModuleGetFunction(const Kernel** function, void*, const char* name) {
  for (const Kernel& kernel : kernels) {
    if (!strcmp(kernel.name, name)) { *function = &kernel; return kOk; }
  }
  return kNotFound;
}
int cuMemAlloc_v2(uint64_t* address, size_t n) {
  if (is_gone()) return kLost;
  if (n > n_bytes_left) return kNoMemory;
  size_t page = sysconf(_SC_PAGESIZE), whole = (n + page - 1) / page * page;
  char* base = static_cast<char*>(mmap(nullptr, whole + page, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  mprotect(base + whole, page, PROT_NONE);
  *address = reinterpret_cast<uint64_t>(base) + (whole - n) / 256 * 256;
  memory[*address] = {base, whole + page};
  n_bytes_left -= n;
  return kOk;
}
int cuMemFree_v2(uint64_t address) {
  auto found = memory.find(address);
  if (found == memory.end()) return kInvalid;
  munmap(found->second.first, found->second.second);
  memory.erase(found);
  return is_gone() ? kLost : kOk;
}
int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t n) {
  if (is_gone()) return kLost;
  memcpy(reinterpret_cast<void*>(to), from, n);
  return kOk;
}
int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t n) {
  if (is_gone()) return kLost;
  memcpy(to, reinterpret_cast<void*>(from), n);
  return kOk;
}

struct NodeParameters {  // CUDA_KERNEL_NODE_PARAMS_v2
  const Kernel* kernel;
  Place grid, block;
  unsigned shared_bytes;
  void** params;
  void *extra, *handle, *context;
};

int cuGraphCreate(Graph** graph, unsigned) { *graph = new Graph; ++n_graphs; return kOk; }
int cuGraphDestroy(Graph* graph) { delete graph; --n_graphs; return kOk; }
int cuGraphExecDestroy(Graph* graph) { return cuGraphDestroy(graph); }

// Nodes form a chain: each waits for the last one.
static long n_early = 0;  // edges that let a kernel start before the last one ends
long emulated_early_edges() { return n_early; }

int cuGraphAddKernelNode_v2(Node** node, Graph* graph, Node** before, size_t n_before,
                            const NodeParameters* given) {
  bool is_first = graph->nodes.empty(), is_chain = graph->nodes.size() == graph->n_edges + 1;
  bool is_behind = n_before == 1 && !is_first && before[0] == graph->nodes.back().get();
  if ((n_before && !is_behind) || (!is_first && !is_chain)) return kInvalid;
  graph->n_edges += is_behind;
  auto made = std::make_unique<Node>(Node{given->kernel, given->grid, given->block, {}});
  for (int i = 0; i < given->kernel->n_params; ++i)
    made->params.push_back(*static_cast<uint64_t*>(given->params[i]));
  *node = made.get();
  graph->nodes.push_back(std::move(made));
  return kOk;
}

int cuGraphAddDependencies_v2(Graph* graph, Node** from, Node** to, const unsigned char* edge,
                              size_t n) {
  size_t last = graph->nodes.size() - 1;
  if (n != 1 || !last || *from != graph->nodes[last - 1].get() || *to != graph->nodes[last].get())
    return kInvalid;
  if (!edge || edge[0] != 1 || edge[1] != 0 || edge[2] != 1) return kInvalid;
  ++n_early;
  ++graph->n_edges;
  return kOk;
}

int cuGraphInstantiateWithFlags(Graph** ready, Graph* graph, uint64_t) {
  *ready = new Graph;
  for (auto& node : graph->nodes) (*ready)->nodes.push_back(std::make_unique<Node>(*node));
  ++n_graphs;
  return kOk;
}

static void run_node(Node& node) {
  std::vector<void*> params;
  for (uint64_t& value : node.params) params.push_back(&value);
  gridDim = node.grid;
  blockDim = node.block;
  body = [&] { node.kernel->run(params.data()); };
  for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
        if (node.kernel->has_barriers) { run_block(); continue; }
        for (threadIdx.z = 0; threadIdx.z < blockDim.z; ++threadIdx.z)
          for (threadIdx.y = 0; threadIdx.y < blockDim.y; ++threadIdx.y)
            for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) body();
      }
}

int cuGraphLaunch(Graph* graph, void*) {
  for (auto& node : graph->nodes) {
    ++n_launches;
    if (is_gone()) return kLost;
    run_node(*node);
  }
  return kOk;
}
}  // extern "C"
