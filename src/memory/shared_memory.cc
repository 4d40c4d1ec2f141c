// SPDX-License-Identifier: Apache-2.0
#include "memory/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/format.h"

namespace cistern::memory {
namespace {

constexpr std::uint64_t kMadeBytes = 256u << 10;  // in one job
constexpr std::uint64_t kFreedBytes = 1u << 20;
// Since Linux 5.14; the absence of both costs a page fault at first touch.
constexpr int kPopulateRead = 22;
constexpr int kPopulateWrite = 23;

// The steps of making one. Each is true, or `error` says why not.
class Making final {
 public:
  Making(const std::string& name, std::uint64_t bytes, Access access)
      : name_(name), bytes_(bytes), access_(access) {}

  bool Begin() {
    memory_.fd = Fd(memfd_create(name_.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!memory_.fd.valid() || ftruncate(memory_.fd.get(), static_cast<off_t>(bytes_)) != 0 ||
        fcntl(memory_.fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
      return NoRoom();
    Result<Mapping> mapping = Mapping::Map(memory_.fd.get(), name_, 0, bytes_, access_);
    if (!mapping) return Failed(std::move(mapping.error()));
    memory_.mapping = std::move(*mapping);
    return true;
  }
  bool Fill(std::uint64_t at) {
    const std::uint64_t piece = std::min(kMadeBytes, bytes_ - at);
    while (fallocate(memory_.fd.get(), 0, static_cast<off_t>(at), static_cast<off_t>(piece)) != 0) {
      if (errno != EINTR) return NoRoom();
    }
    static_cast<void>(madvise(memory_.mapping.data() + at, piece,
                              access_ == Access::kRead ? kPopulateRead : kPopulateWrite));
    return true;
  }
  Status& error() { return error_; }
  SharedMemory& memory() { return memory_; }

 private:
  bool NoRoom() {
    const bool full = errno == ENOSPC || errno == ENOMEM || errno == EMFILE || errno == ENFILE;
    return Failed(Status(full ? Code::kBusy : Code::kIoError,
                         Text(name_, " of ", bytes_, " bytes: ", ErrnoText(errno))));
  }
  bool Failed(Status why) {
    error_ = std::move(why);
    return false;
  }

  const std::string& name_;
  const std::uint64_t bytes_;
  const Access access_;
  SharedMemory memory_;
  Status error_;
};

// Deletes itself when all is done.
class Freeing final : public MoverJob {
 public:
  Freeing(Movers& movers, SharedMemory memory, PagesAtEnd pages, PagesFreed freed)
      : movers_(movers),
        memory_(std::move(memory)),
        at_(pages == PagesAtEnd::kTaken ? 0 : size()),
        freed_(std::move(freed)) {}
  ~Freeing() override = default;

  void Move(arena::Words&) override {
    if (at_ >= size()) {
      SharedMemory(std::move(memory_));
      return;
    }
    std::byte* const from = memory_.mapping.data() + at_;
    piece_ = std::min(kFreedBytes, size() - at_);
    // Only of what may be written to. Refused: the pages go with the last who maps them.
    if (mprotect(from, piece_, PROT_READ | PROT_WRITE) == 0)
      static_cast<void>(madvise(from, piece_, MADV_REMOVE));
    at_ += piece_;
  }
  void Run() override {
    if (const std::uint64_t bytes = std::exchange(piece_, 0); bytes > 0 && freed_) freed_(bytes);
    if (memory_.mapping.data() != nullptr) return movers_.Submit(*this);
    delete this;
  }

 private:
  std::uint64_t size() const { return memory_.mapping.size(); }

  Movers& movers_;
  SharedMemory memory_;
  std::uint64_t at_;
  std::uint64_t piece_ = 0;
  PagesFreed freed_;
};

}  // namespace

Task<Result<SharedMemory>> MakeSharedMemory(Executor&, Movers& movers, std::string name, std::uint64_t bytes,
                                            Access access) {
  Making making(name, bytes, access);
  CallJob begin(movers, [&making] { return making.Begin(); });
  bool made = co_await begin;
  for (std::uint64_t at = 0; made && at < bytes; at += kMadeBytes) {
    CallJob fill(movers, [&making, at] { return making.Fill(at); });
    made = co_await fill;
  }
  if (made) co_return std::move(making.memory());
  FreeSharedMemory(movers, std::move(making.memory()), PagesAtEnd::kTaken);
  co_return Error(std::move(making.error()));
}

void FreeSharedMemory(Movers& movers, SharedMemory memory, PagesAtEnd pages, PagesFreed freed) {
  if (memory.mapping.data() == nullptr) return;
  movers.Submit(*new Freeing(movers, std::move(memory), pages, std::move(freed)));
}

}  // namespace cistern::memory
