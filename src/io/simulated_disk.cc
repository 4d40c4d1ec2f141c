// SPDX-License-Identifier: Apache-2.0
#include "io/simulated_disk.h"

#include <errno.h>

#include <algorithm>
#include <cstring>

#include "base/format.h"

namespace cistern::io {
namespace {

constexpr std::size_t kSector = 512;

Status NotThere(std::string_view what, const std::string& path) {
  return Status(Code::kIoError, Text(what, " ", path, ": ", ErrnoText(ENOENT)));
}

std::string ParentOf(const std::string& path) {
  std::size_t slash = path.rfind('/');
  return slash == std::string::npos || slash == 0 ? "/" : path.substr(0, slash);
}

// The memory of the first `size` bytes of it.
std::vector<std::span<std::byte>> PiecesOf(const IoRequest& request, std::uint64_t size) {
  if (request.pieces == nullptr) return {std::span(request.data, size)};
  std::vector<std::span<std::byte>> pieces;
  for (const iovec& piece : std::span(request.pieces, request.piece_count)) {
    std::size_t n = std::min<std::uint64_t>(piece.iov_len, size);
    if (n > 0) pieces.emplace_back(static_cast<std::byte*>(piece.iov_base), n);
    size -= n;
  }
  return pieces;
}

std::vector<std::byte> BytesOf(const IoRequest& request, std::uint64_t size) {
  std::vector<std::byte> bytes;
  bytes.reserve(size);
  for (std::span<std::byte> piece : PiecesOf(request, size)) {
    bytes.insert(bytes.end(), piece.begin(), piece.end());
  }
  return bytes;
}

void FlipIn(const IoRequest& request, std::uint64_t bit) {
  std::uint64_t at = bit / 8;
  for (std::span<std::byte> piece : PiecesOf(request, request.size)) {
    if (at < piece.size()) {
      piece[at] ^= std::byte{1} << (bit % 8);
      return;
    }
    at -= piece.size();
  }
}

}  // namespace

Result<SimulatedDisk::InodePtr> SimulatedDisk::Open(const std::string& path, OpenMode mode) {
  auto at = names_.find(path);
  if (at != names_.end()) {
    const bool makes = mode == OpenMode::kCreateNew || mode == OpenMode::kDirectCreateNew;
    if (makes || (at->second->directory && mode != OpenMode::kRead)) {
      return Error(Code::kIoError, Text("open ", path, ": ", ErrnoText(makes ? EEXIST : EISDIR)));
    }
    return at->second;
  }
  if (mode == OpenMode::kRead || mode == OpenMode::kReadWrite || mode == OpenMode::kDirect)
    return Error(NotThere("open", path));
  auto inode = std::make_shared<Inode>();
  inode->path = path;
  names_[path] = inode;
  changes_.push_back({{path, inode}});
  // The directories above are there since before the simulation began.
  for (std::string above = ParentOf(path); !names_.contains(above); above = ParentOf(above)) {
    auto directory = std::make_shared<Inode>();
    directory->path = above;
    directory->directory = true;
    names_[above] = durable_names_[above] = directory;
  }
  return inode;
}

Status SimulatedDisk::Rename(const std::string& from, const std::string& to) {
  auto at = names_.find(from);
  if (at == names_.end()) return NotThere("rename", from);
  InodePtr inode = at->second;
  names_.erase(at);
  names_[to] = inode;
  changes_.push_back({{from, nullptr}, {to, inode}});
  return Status();
}

Status SimulatedDisk::Remove(const std::string& path) {
  if (names_.erase(path) == 0) return NotThere("remove", path);
  changes_.push_back({{path, nullptr}});
  return Status();
}

bool SimulatedDisk::IsNamed(const Inode& inode) const {
  return std::ranges::any_of(names_, [&inode](const auto& name) { return name.second.get() == &inode; });
}

Fault SimulatedDisk::AskFault(const IoRequest& request, const Inode& inode) {
  Fault fault = faults_ ? faults_(request, inode.path) : Fault{};
  const bool read = request.kind == IoRequest::Kind::kRead;
  const bool sync = request.kind == IoRequest::Kind::kSync;
  if (fault.kind == FaultKind::kLostFlush && !sync) fault = {};
  if (fault.kind == FaultKind::kFlip && !read) fault = {};
  if (fault.kind == FaultKind::kElsewhere && !read) fault = {};
  if (fault.kind == FaultKind::kLostTail && (read || sync)) fault = {};
  if (fault.kind == FaultKind::kNoSpace && read) fault = {};
  if (fault.kind != FaultKind::kNone) ++injected_[static_cast<std::size_t>(fault.kind)];
  return fault;
}

std::int64_t SimulatedDisk::Carry(Inode& inode, const IoRequest& request, const Fault& fault,
                                  std::uint64_t writes) {
  int error = 0;
  if (fault.kind == FaultKind::kIoError) error = EIO;
  if (fault.kind == FaultKind::kNoSpace) error = ENOSPC;
  if (request.kind == IoRequest::Kind::kSync) {
    if (fault.kind == FaultKind::kLostFlush) {
      PretendSync(inode, writes);
    } else {
      Sync(inode, writes, error != 0);
    }
    return -error;
  }
  if (error != 0) return -error;
  std::uint64_t size = request.size;
  if (fault.kind == FaultKind::kShort) size = std::min(size, fault.value);
  if (fault.kind == FaultKind::kLostTail) {
    Write(inode, request, std::min(size, fault.value));
    return static_cast<std::int64_t>(size);
  }
  if (request.kind == IoRequest::Kind::kWrite) return Write(inode, request, size);
  IoRequest read = request;
  if (fault.kind == FaultKind::kElsewhere) read.offset = fault.value;
  std::int64_t moved = Read(inode, read, size);
  if (fault.kind == FaultKind::kFlip && moved > 0) {
    FlipIn(request, fault.value % (8 * static_cast<std::uint64_t>(moved)));
  }
  return moved;
}

std::int64_t SimulatedDisk::Read(const Inode& inode, const IoRequest& request, std::uint64_t size) const {
  if (inode.directory) return -EISDIR;
  if (request.offset >= inode.bytes.size()) return 0;
  size = std::min<std::uint64_t>(size, inode.bytes.size() - request.offset);
  const std::byte* from = inode.bytes.data() + request.offset;
  for (std::span<std::byte> piece : PiecesOf(request, size)) {
    std::memcpy(piece.data(), from, piece.size());
    from += piece.size();
  }
  return static_cast<std::int64_t>(size);
}

std::int64_t SimulatedDisk::Write(Inode& inode, const IoRequest& request, std::uint64_t size) {
  std::vector<std::byte> bytes = BytesOf(request, size);
  Apply(inode.bytes, request.offset, bytes);
  inode.unsynced.push_back({request.offset, std::move(bytes), false});
  return static_cast<std::int64_t>(size);
}

void SimulatedDisk::Apply(std::vector<std::byte>& to, std::uint64_t offset,
                          std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  if (to.size() < offset + bytes.size()) to.resize(offset + bytes.size());
  std::memcpy(to.data() + offset, bytes.data(), bytes.size());
}

void SimulatedDisk::Sync(Inode& inode, std::uint64_t writes, bool failed) {
  if (inode.directory) {
    if (failed) return;
    // One journal for all names, as file systems have it.
    changes_.clear();
    durable_names_ = names_;
    return;
  }
  const std::size_t covered = Covered(inode, writes);
  std::vector<Unsynced> rest;
  for (std::size_t i = 0; i < inode.unsynced.size(); ++i) {
    Unsynced& write = inode.unsynced[i];
    if (i >= covered || failed || write.doubtful) {
      write.doubtful |= i < covered;
      rest.push_back(std::move(write));
      continue;
    }
    Apply(inode.durable, write.offset, write.bytes);
    ++inode.synced_writes;
    // What was in doubt below it is overwritten: a crash cannot bring it back.
    inode.synced_writes += std::erase_if(rest, [&write](const Unsynced& older) {
      return older.doubtful && older.offset < write.offset + write.bytes.size() &&
             write.offset < older.offset + older.bytes.size();
    });
  }
  inode.unsynced = std::move(rest);
}

void SimulatedDisk::PretendSync(Inode& inode, std::uint64_t writes) {
  const std::size_t covered = Covered(inode, writes);
  for (std::size_t i = 0; i < covered; ++i) inode.unsynced[i].believed = true;
}

std::size_t SimulatedDisk::Covered(const Inode& inode, std::uint64_t writes) {
  const std::uint64_t covered = writes > inode.synced_writes ? writes - inode.synced_writes : 0;
  return static_cast<std::size_t>(std::min<std::uint64_t>(covered, inode.unsynced.size()));
}

void SimulatedDisk::LeaveInDoubt(Inode& inode, const IoRequest& request) {
  if (inode.directory) return;
  inode.unsynced.push_back({request.offset, BytesOf(request, request.size), false});
}

void SimulatedDisk::Crash() {
  // A journal keeps a beginning of the changes of names.
  std::size_t kept = random_.Below(changes_.size() + 1);
  for (std::size_t i = 0; i < kept; ++i) {
    for (NameChange& change : changes_[i]) {
      if (change.inode == nullptr) {
        durable_names_.erase(change.path);
      } else {
        durable_names_[change.path] = change.inode;
      }
    }
  }
  changes_.clear();
  names_.clear();
  lost_.clear();
  for (auto& [path, old] : durable_names_) {
    auto inode = std::make_shared<Inode>(*old);
    for (const Unsynced& write : inode->unsynced) {
      enum : std::uint64_t { kLost, kKept, kTorn, kBegun, kFates };
      const std::uint64_t fate = random_.Below(kFates);
      if ((write.doubtful || write.believed) && fate != kKept) {
        lost_.push_back({path, write.offset, write.bytes.size()});
      }
      // Where it ends: anywhere, or where a page of the device does.
      constexpr std::size_t kPage = 4096;
      const std::size_t begun = fate != kBegun        ? 0
                                : random_.Chance(0.5) ? random_.Below(write.bytes.size() + 1)
                                                      : random_.Below(write.bytes.size() / kPage + 1) * kPage;
      for (std::size_t at = 0; fate != kLost && at < write.bytes.size();) {
        // Sectors are the disk's, so a write that begins within one tears where the disk's sector ends.
        std::uint64_t to_boundary = kSector - (write.offset + at) % kSector;
        std::size_t n = std::min<std::size_t>(to_boundary, write.bytes.size() - at);
        const bool here = fate == kBegun ? at < begun : fate == kKept || random_.Chance(0.5);
        if (here) {
          Apply(inode->durable, write.offset + at, std::span(write.bytes).subspan(at, n));
        }
        at += n;
      }
    }
    inode->lock.reset();
    inode->unsynced.clear();
    inode->synced_writes = 0;
    inode->bytes = inode->durable;
    names_[path] = old = inode;
  }
}

std::span<const std::byte> SimulatedDisk::Bytes(const std::string& path) const {
  auto at = names_.find(path);
  return at == names_.end() ? std::span<const std::byte>() : at->second->bytes;
}

std::span<const std::byte> SimulatedDisk::Durable(const std::string& path) const {
  auto at = durable_names_.find(path);
  return at == durable_names_.end() ? std::span<const std::byte>() : at->second->durable;
}

void SimulatedDisk::Replace(const std::string& path, std::span<const std::byte> bytes) {
  Inode& inode = *names_.at(path);
  inode.bytes.assign(bytes.begin(), bytes.end());
  inode.durable = inode.bytes;
  inode.synced_writes += inode.unsynced.size();
  inode.unsynced.clear();
}

void SimulatedDisk::BecomeCopyOf(const SimulatedDisk& other) {
  names_.clear();
  changes_.clear();
  for (const auto& [path, file] : other.names_) {
    names_[path] = std::make_shared<Inode>(
        Inode{.path = path, .bytes = file->bytes, .durable = file->bytes, .directory = file->directory});
  }
  durable_names_ = names_;
}

void SimulatedDisk::Flip(const std::string& path, std::uint64_t offset, std::byte mask) {
  Inode& inode = *names_.at(path);
  CISTERN_ASSERT(offset < inode.bytes.size());
  inode.bytes[offset] ^= mask;
  if (offset < inode.durable.size()) inode.durable[offset] ^= mask;
}

}  // namespace cistern::io
