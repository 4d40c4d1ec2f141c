// SPDX-License-Identifier: Apache-2.0
#include "client/mapped.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/format.h"

namespace cistern::client {
namespace {

constexpr std::size_t kPageBytes = 4096;

}  // namespace

std::string ErrorText(int error) {
  const char* name = strerrorname_np(error);
  return Text(strerrordesc_np(error) != nullptr ? strerrordesc_np(error) : "unknown error", " (",
              name != nullptr ? std::string_view(name) : std::string_view("?"), ")");
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

Mapped::~Mapped() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Result<Mapped> Mapped::Map(const Descriptor& file, std::string_view what, Access access, bool populate) {
  struct stat about;
  if (fstat(file.get(), &about) != 0 || about.st_size <= 0)
    return Error(Code::kIoError, Text("the node's ", what, " cannot be mapped: its size is not known"));
  auto bytes = static_cast<std::uint64_t>(about.st_size);
  int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* data = mmap(nullptr, bytes, protection, MAP_SHARED | (populate ? MAP_POPULATE : 0), file.get(), 0);
  if (data == MAP_FAILED)
    return Error(Code::kIoError,
                 Text("the node's ", what, " of ", bytes, " bytes cannot be mapped: ", ErrorText(errno)));
  return Mapped(static_cast<std::byte*>(data), bytes);
}

Result<ForkMark> ForkMark::Make() {
  void* page = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return Error(Code::kIoError, Text("a page cannot be mapped: ", ErrorText(errno)));
  auto* word = static_cast<std::uint64_t*>(page);
  ForkMark mark(word);
  if (madvise(page, kPageBytes, MADV_WIPEONFORK) != 0)
    return Error(Code::kIoError, Text("a page cannot be wiped on fork: ", ErrorText(errno)));
  *word = 1;
  return mark;
}

ForkMark::~ForkMark() {
  if (page_ != nullptr) munmap(const_cast<std::uint64_t*>(page_), kPageBytes);
}

}  // namespace cistern::client
