// SPDX-License-Identifier: Apache-2.0
// A shared mapping of a file that unmaps itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "cistern/status.h"

namespace cistern {

enum class Access : std::uint8_t { kRead, kReadWrite };
enum class Pages : std::uint8_t { kAtTouch, kAtOnce };  // when they are brought in

// Owns a shared mapping of a file. One of a huge page or more begins at a huge page.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  Mapping& operator=(Mapping&& other) noexcept {
    Mapping old(std::move(*this));
    bytes_ = std::exchange(other.bytes_, {});
    return *this;
  }
  ~Mapping();

  // Maps size_bytes from offset (a multiple of the page size). `path` only names it in errors. The
  // descriptor may be closed afterwards.
  static Result<Mapping> Map(int fd, const std::string& path, std::uint64_t offset, std::uint64_t size_bytes,
                             Access access, Pages pages = Pages::kAtTouch);
  // All of the file; kIoError where it is empty.
  static Result<Mapping> MapWhole(int fd, const std::string& path, Access access,
                                  Pages pages = Pages::kAtTouch);

  std::byte* data() const { return bytes_.data(); }
  std::size_t size() const { return bytes_.size(); }
  // Writable only when mapped so: writing through a kRead mapping is a fault.
  std::span<std::byte> bytes() const { return bytes_; }
  bool valid() const { return !bytes_.empty(); }

 private:
  explicit Mapping(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};

}  // namespace cistern
