// SPDX-License-Identifier: Apache-2.0
#include "net/libfabric.h"

#include <errno.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/assert.h"
#include "base/fd.h"
#include "base/format.h"
#include "net/libfabric_calls.h"
#include "net/libfabric_endpoint.h"

namespace cistern::net {
namespace {

// Reads that wait at the device; each connection of the library's takes memory for so many.
constexpr std::size_t kDeviceReads = 64;
constexpr std::array<const char*, 2> kProviders = {"efa", "verbs;ofi_rxm"};

}  // namespace

class LibfabricReader final : public FabricReader {
 public:
  LibfabricReader(Libfabric& fabric, const LibfabricEndpoint::Parts& parts)
      : fabric_(fabric), endpoint_(parts) {}
  ~LibfabricReader() override {
    endpoint_.Close();
    if (region_ != nullptr) (void)::fi_close(&region_->fid);
    if (buffer_ != nullptr) (void)::munmap(buffer_, kBytes);
  }

  Status Start(ConstPiece name) {
    void* const memory =
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
      return Status(Code::kBusy, Text("libfabric: ", kBytes, " bytes for reads: ", ErrnoText(errno)));
    buffer_ = static_cast<std::byte*>(memory);
    auto region = fabric_.MakeRegion({buffer_, kBytes}, FI_READ);
    if (!region) return region.error();
    region_ = *region;
    if (Status status = endpoint_.Open(); !status.ok()) return status;
    return endpoint_.Reach(name);
  }

  Executor& executor() override { return fabric_.executor(); }
  Piece buffer() override { return {buffer_, kBytes}; }
  void Close() override { endpoint_.Close(); }

  Task<Status> Read(FabricPlace from, Piece into, Instant deadline) override {
    CISTERN_ASSERT(into.data() >= buffer_ && into.data() + into.size() <= buffer_ + kBytes);
    if (!endpoint_.open()) co_return Status(Code::kGone, "libfabric: the endpoint was closed");
    const auto read = std::ranges::find_if(reads_, [](const LibfabricRead& one) { return one.free(); });
    if (read == reads_.end())
      co_return Status(Code::kBusy, Text("libfabric: ", kReads, " reads are under way, which is the limit"));
    struct Held {
      explicit Held(LibfabricRead& of) : read(of) { read.held = true; }
      ~Held() { read.held = false; }
      LibfabricRead& read;
    };
    const Held held(*read);
    read->from = from;
    read->into = into;
    read->done.Reset();
    read->status = Status();
    endpoint_.Begin(*read, ::fi_mr_desc(region_));
    const Status in_time = co_await read->done.Wait(deadline);
    if (!in_time.ok()) co_return Status(Code::kTooLate, "libfabric: no bytes before the deadline");
    co_return read->status;
  }

 private:
  static constexpr std::size_t kBytes = kReads * kReadBytes;

  Libfabric& fabric_;
  std::byte* buffer_ = nullptr;
  fid_mr* region_ = nullptr;
  std::array<LibfabricRead, kReads> reads_;
  LibfabricEndpoint endpoint_;
};

Libfabric::Libfabric(io::Loop& loop) : loop_(loop) {}

Result<std::unique_ptr<Libfabric>> Libfabric::Open(io::Loop& loop, const LibfabricOptions& options) {
  std::unique_ptr<Libfabric> fabric(new Libfabric(loop));
  if (Status status = fabric->Start(options); !status.ok()) return Error(std::move(status));
  return fabric;
}

Status Libfabric::Failed(const std::string& what, long result) const {
  return Status(Code::kIoError, Text("libfabric: ", what, ": ", calls_->strerror(static_cast<int>(-result))));
}

Status Libfabric::Start(const LibfabricOptions& options) {
  auto calls = LibfabricCalls::Load();
  if (!calls) return calls.error();
  calls_ = std::make_unique<const LibfabricCalls>(*calls);
  polled_ = options.polled;
  fi_info* const hints = calls_->dupinfo(nullptr);
  if (hints == nullptr) return Status(Code::kBusy, "libfabric: no memory");
  hints->caps = FI_RMA | FI_READ | FI_REMOTE_READ;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->domain_attr->threading = FI_THREAD_SAFE;
  hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
  hints->tx_attr->size = hints->rx_attr->size = kDeviceReads;
  const bool probe = options.provider.empty();
  std::vector<std::string> wanted = {options.provider};
  if (probe) wanted.assign(kProviders.begin(), kProviders.end());
  {
    const SignalsKept signals;
    for (const std::string& provider : wanted) {
      ::free(hints->fabric_attr->prov_name);
      hints->fabric_attr->prov_name = ::strdup(provider.c_str());
      const char* const node = options.address.empty() ? nullptr : options.address.c_str();
      const std::uint64_t flags = node == nullptr ? 0 : FI_SOURCE;
      if (calls_->getinfo(LibfabricCalls::kVersion, node, nullptr, flags, hints, &info_) == 0) break;
      info_ = nullptr;
    }
  }
  calls_->freeinfo(hints);
  if (info_ == nullptr)
    return Status(Code::kMiss,
                  Text("libfabric finds no device ", probe ? "of verbs or EFA" : options.provider,
                       options.address.empty() ? "" : " with the address ", options.address));
  kind_ = info_->fabric_attr->prov_name;
  device_ = info_->domain_attr->name == nullptr ? "" : info_->domain_attr->name;
  int result = calls_->fabric(info_->fabric_attr, &fabric_, nullptr);
  if (result != 0) return Failed(kind_, result);
  result = ::fi_domain(fabric_, info_, &domain_, nullptr);
  if (result != 0) return Failed(Text(kind_, " on ", device_), result);
  serving_ = std::make_unique<LibfabricEndpoint>(
      LibfabricEndpoint::Parts{loop_, fabric_, domain_, info_, calls_->strerror, polled_});
  if (Status status = serving_->Open(); !status.ok()) return status;
  auto name = serving_->Name();
  if (!name) return name.error();
  name_ = std::move(*name);
  return Status();
}

Libfabric::~Libfabric() {
  serving_.reset();
  for (auto& [at, registered] : registered_) (void)::fi_close(&registered.region->fid);
  if (domain_ != nullptr) (void)::fi_close(&domain_->fid);
  if (fabric_ != nullptr) (void)::fi_close(&fabric_->fid);
  if (info_ != nullptr) calls_->freeinfo(info_);
}

Result<std::unique_ptr<FabricReader>> Libfabric::ReaderOf(ConstPiece name) {
  auto reader = std::make_unique<LibfabricReader>(
      *this, LibfabricEndpoint::Parts{loop_, fabric_, domain_, info_, calls_->strerror, polled_});
  if (Status status = reader->Start(name); !status.ok()) return Error(std::move(status));
  return reader;
}

// ---- memory that others read

Result<fid_mr*> Libfabric::MakeRegion(std::span<const std::byte> memory, std::uint64_t access) {
  std::uint64_t key = 0;  // random, where the device lets us say
  if (::getrandom(&key, sizeof(key), 0) != sizeof(key))
    return Error(Code::kIoError, "libfabric: no random key");
  fid_mr* region = nullptr;
  const int result = ::fi_mr_reg(domain_, memory.data(), memory.size(), access, 0, key, 0, &region, nullptr);
  if (result != 0)
    return Error(Code::kBusy, Text("libfabric: ", memory.size(), " bytes of memory for ", device_, ": ",
                                   calls_->strerror(-result),
                                   "; is the limit of locked memory (RLIMIT_MEMLOCK) large enough?"));
  return region;
}

Status Libfabric::RegisterPiece(std::span<const std::byte> memory) {
  auto region = MakeRegion(memory, FI_REMOTE_READ);
  if (!region) return region.error();
  const bool by_address = (info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
  Registered registered{memory.size(), *region, {0, ::fi_mr_key(*region)}};
  if (by_address) registered.place.address = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::lock_guard lock(mutex_);
  const bool is_new = registered_.emplace(memory.data(), registered).second;
  CISTERN_ASSERT(is_new);
  return Status();
}

Status Libfabric::Register(std::span<const std::byte> memory) {
  while (!memory.empty()) {
    const auto piece = memory.first(std::min<std::size_t>(memory.size(), kPieceBytes));
    if (Status status = RegisterPiece(piece); !status.ok()) return status;
    memory = memory.subspan(piece.size());
  }
  return Status();
}

void Libfabric::Deregister(std::span<const std::byte> memory) {
  const std::byte* const begin = memory.data();
  const std::byte* const end = begin + memory.size();
  std::vector<std::pair<const std::byte*, Registered>> gone;
  {
    const std::lock_guard lock(mutex_);
    for (auto at = registered_.begin(); at != registered_.end();) {
      const bool overlaps = at->first < end && at->first + at->second.bytes > begin;
      if (overlaps) gone.emplace_back(*at);
      at = overlaps ? registered_.erase(at) : std::next(at);
    }
  }
  for (const auto& [at, registered] : gone) {
    (void)::fi_close(&registered.region->fid);
    // What of the piece stays. Where it cannot be registered anew, rails carry what lies there.
    if (at < begin) (void)RegisterPiece({at, begin});
    if (at + registered.bytes > end) (void)RegisterPiece({end, at + registered.bytes});
  }
}

std::uint64_t Libfabric::registered_bytes() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t bytes = 0;
  for (const auto& [at, registered] : registered_) bytes += registered.bytes;
  return bytes;
}

std::optional<FabricPlace> Libfabric::PlaceOf(ConstPiece bytes) const {
  const std::lock_guard lock(mutex_);
  auto at = registered_.upper_bound(bytes.data());
  if (at == registered_.begin()) return std::nullopt;
  --at;
  const auto offset = static_cast<std::uint64_t>(bytes.data() - at->first);
  if (offset >= at->second.bytes || bytes.size() > at->second.bytes - offset) return std::nullopt;
  return FabricPlace{at->second.place.address + offset, at->second.place.key};
}

}  // namespace cistern::net
