// SPDX-License-Identifier: Apache-2.0
#include "net/libfabric_endpoint.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <algorithm>
#include <utility>

#include "base/format.h"

namespace cistern::net {
namespace {

// Completions that one step handles.
constexpr int kHarvest = 64;

}  // namespace

LibfabricEndpoint::LibfabricEndpoint(const Parts& parts)
    : parts_(parts), again_(parts.loop.executor(), [this] { Progress(); }) {}

LibfabricEndpoint::~LibfabricEndpoint() { Close(); }

Status LibfabricEndpoint::Failed(const char* what, long result) const {
  return Status(Code::kIoError, Text("libfabric: ", what, ": ", parts_.text_of(static_cast<int>(-result))));
}

Status LibfabricEndpoint::Open() {
  fi_info& info = *parts_.info;
  fi_cq_attr queue{};
  queue.format = FI_CQ_FORMAT_CONTEXT;
  queue.size = info.tx_attr->size + info.rx_attr->size;
  queue.wait_obj = FI_WAIT_FD;
  int result = parts_.polled ? -FI_ENOSYS : ::fi_cq_open(parts_.domain, &queue, &queue_, nullptr);
  signals_ = result == 0;
  if (!signals_) {
    queue.wait_obj = FI_WAIT_NONE;
    result = ::fi_cq_open(parts_.domain, &queue, &queue_, nullptr);
  }
  if (result != 0) return Failed("a completion queue", result);
  fi_av_attr addresses{};
  addresses.type = info.domain_attr->av_type == FI_AV_UNSPEC ? FI_AV_TABLE : info.domain_attr->av_type;
  result = ::fi_av_open(parts_.domain, &addresses, &addresses_, nullptr);
  if (result != 0) return Failed("a table of addresses", result);
  result = ::fi_endpoint(parts_.domain, &info, &endpoint_, nullptr);
  if (result != 0) return Failed("an endpoint", result);
  result = ::fi_ep_bind(endpoint_, &addresses_->fid, 0);
  if (result == 0) result = ::fi_ep_bind(endpoint_, &queue_->fid, FI_TRANSMIT | FI_RECV);
  if (result == 0) result = ::fi_enable(endpoint_);
  if (result != 0) return Failed("an endpoint of its own", result);
  if (signals_) {
    int fd = -1;
    result = ::fi_control(&queue_->fid, FI_GETWAIT, &fd);
    if (result != 0) return Failed("the descriptor of a completion queue", result);
    auto watch = parts_.loop.Watch(fd, io::WatchMode::kLevel, [this](std::uint32_t) { Progress(); });
    if (!watch) return watch.error();
    watch_ = std::move(*watch);
  }
  Progress();
  return Status();
}

Result<std::vector<std::byte>> LibfabricEndpoint::Name() const {
  std::vector<std::byte> name(Fabric::kNameBytes);
  std::size_t bytes = name.size();
  const int result = ::fi_getname(&endpoint_->fid, name.data(), &bytes);
  if (result != 0) return Error(Failed("the name of an endpoint", result));
  name.resize(std::min(bytes, name.size()));
  return name;
}

Status LibfabricEndpoint::Reach(ConstPiece name) {
  std::vector<std::byte> copy(name.begin(), name.end());
  copy.resize(Fabric::kNameBytes);  // the library reads as many as an address of its own has
  const int result = ::fi_av_insert(addresses_, copy.data(), 1, &other_, 0, nullptr);
  if (result != 1) return Failed("the address that the other side says", result < 0 ? result : -FI_EINVAL);
  return Status();
}

void LibfabricEndpoint::Begin(LibfabricRead& read, void* desc) {
  desc_ = desc;
  read.queued = true;
  queued_.push_back(&read);
  AskQueued();
}

void LibfabricEndpoint::AskQueued() {
  while (!queued_.empty()) {
    LibfabricRead& read = *queued_.front();
    const ssize_t result = ::fi_read(endpoint_, read.into.data(), read.into.size(), desc_, other_,
                                     read.from.address, read.from.key, &read.context);
    // Its queue is full, or it connects.
    if (result == -FI_EAGAIN) {
      LookAgain();
      return;
    }
    queued_.pop_front();
    read.queued = false;
    if (result != 0) {
      End(read, Status(Code::kGone, std::string(Failed("a read", result).message())));
      continue;
    }
    read.asked = true;
    under_way_.push_back(&read);
  }
  if (!signals_ && !under_way_.empty()) LookAgain();
}

void LibfabricEndpoint::LookAgain() {
  const Instant soon = executor().Now().PlusUs(kBusyUs);
  if (!again_.armed() || soon < again_.when()) again_.Arm(soon);
}

void LibfabricEndpoint::End(LibfabricRead& read, Status status) {
  std::erase(under_way_, &read);
  read.asked = read.queued = false;
  read.status = std::move(status);
  read.done.Set();
}

bool LibfabricEndpoint::Harvest() {
  for (int seen = 0; seen < kHarvest;) {
    std::array<fi_cq_entry, 16> entries;
    const ssize_t count = ::fi_cq_read(queue_, entries.data(), entries.size());
    if (count > 0) {
      seen += static_cast<int>(count);
      for (ssize_t i = 0; i < count; ++i) {
        if (void* const context = entries[static_cast<std::size_t>(i)].op_context; context != nullptr)
          End(*static_cast<LibfabricRead*>(context), Status());
      }
      continue;
    }
    if (count != -FI_EAVAIL) return false;
    ++seen;
    fi_cq_err_entry error{};
    if (::fi_cq_readerr(queue_, &error, 0) <= 0) return false;
    Status why(Code::kGone, Text("libfabric: a read: ", parts_.text_of(error.err)));
    if (error.op_context != nullptr) {
      End(*static_cast<LibfabricRead*>(error.op_context), std::move(why));
    } else {
      // Of no read in particular: of none we know how it stands.
      for (LibfabricRead* read : std::vector(under_way_)) {
        read->status = why;
        read->done.Set();
      }
    }
  }
  return true;
}

void LibfabricEndpoint::Progress() {
  if (!open()) return;
  bool more = Harvest();
  AskQueued();
  if (signals_) {
    // Only where the library agrees that there is nothing, its descriptor says what comes.
    std::array<fid*, 1> waits = {&queue_->fid};
    more = more || ::fi_trywait(parts_.fabric, waits.data(), 1) == -FI_EAGAIN;
    if (more) again_.Arm(executor().Now());
    return;
  }
  const bool busy = more || !under_way_.empty() || !queued_.empty();
  again_.Arm(executor().Now().PlusUs(busy ? kBusyUs : kIdleUs));
}

void LibfabricEndpoint::Close() {
  watch_.End();
  again_.Disarm();
  if (endpoint_ != nullptr) (void)::fi_close(&endpoint_->fid);
  if (queue_ != nullptr) (void)::fi_close(&queue_->fid);
  if (addresses_ != nullptr) (void)::fi_close(&addresses_->fid);
  endpoint_ = nullptr;
  queue_ = nullptr;
  addresses_ = nullptr;
  const Status closed(Code::kGone, "libfabric: the endpoint was closed");
  for (LibfabricRead* read : std::exchange(queued_, {})) End(*read, closed);
  for (LibfabricRead* read : std::exchange(under_way_, {})) End(*read, closed);
}

}  // namespace cistern::net
