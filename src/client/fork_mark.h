// SPDX-License-Identifier: Apache-2.0
// What a client holds of the node's: descriptors and mappings that close themselves, and the page that says
// whether this is still the process that connected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "cistern/status.h"

namespace cistern::client {

// "no such file (ENOENT)".
std::string ErrorText(int error);

class Descriptor final {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    Descriptor old(std::exchange(fd_, std::exchange(other.fd_, -1)));
    return *this;
  }
  ~Descriptor();

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

class Mapped final {
 public:
  enum class Access : std::uint8_t { kRead, kReadWrite };

  Mapped() = default;
  Mapped(Mapped&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapped& operator=(Mapped&& other) noexcept {
    Mapped old(std::move(*this));
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }
  ~Mapped();

  // All of the file. `populate` brings the pages in at once. `what` names it in errors.
  static Result<Mapped> Map(const Descriptor& file, std::string_view what, Access access, bool populate);

  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  Mapped(std::byte* data, std::uint64_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

// A page that the kernel gives a forked child as zeros: one load tells which side of a fork this is.
class ForkMark final {
 public:
  static Result<ForkMark> Make();
  ForkMark(ForkMark&& other) noexcept : page_(std::exchange(other.page_, nullptr)) {}
  ForkMark& operator=(ForkMark&&) = delete;
  ~ForkMark();

  bool forked() const { return *page_ == 0; }

 private:
  explicit ForkMark(const volatile std::uint64_t* page) : page_(page) {}
  const volatile std::uint64_t* page_;
};

}  // namespace cistern::client
