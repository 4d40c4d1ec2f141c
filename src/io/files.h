// SPDX-License-Identifier: Apache-2.0
// The few system calls of start-up around descriptors and mappings. Every error names the path, the value and
// the system's reason. These calls block: the core makes them at start and end, and file I/O in between goes
// through a Loop.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/mapping.h"
#include "cistern/status.h"

namespace cistern::io {

enum class OpenMode : std::uint8_t {
  kRead,       // must exist; a descriptor that cannot be made writable (R12)
  kReadWrite,  // must exist
  kCreate,     // read and write, made with 0600 if it is missing
  kCreateNew,  // read and write, must not exist
  // Read and write past the page cache (O_DIRECT), a file or a block device. Offsets, sizes and memory keep
  // to its DirectLimits. A file system that cannot is kIoError and says so.
  kDirect,           // must exist
  kDirectCreateNew,  // made with 0600, must not exist
};

// What operations past the page cache keep to: the memory of each piece begins and ends at a multiple of
// memory_align, offset and size of an operation are multiples of offset_align. Powers of two.
struct DirectLimits {
  std::uint32_t memory_align = 0;
  std::uint32_t offset_align = 0;
  bool block_device = false;
};

Result<Fd> OpenFile(const std::string& path, OpenMode mode);
// Of a block device, its capacity.
Result<std::uint64_t> FileSize(int fd, const std::string& path);
// Whether a name of its file system leads to the open file, or a device is behind it.
bool IsNamed(int fd);
// As the kernel tells them, else from the device's sector or the file system's block.
Result<DirectLimits> DirectLimitsOf(int fd, const std::string& path);
// Makes [0, size_bytes) of the file real, so that writing there cannot fail for want of room. No room is
// kBusy and names the size wanted and what the file system has left. A block device only has to be as large.
Status Preallocate(int fd, const std::string& path, std::uint64_t size_bytes);
// kBusy: a file of this process may not have so many bytes (RLIMIT_FSIZE).
Status CheckFileLimit(const std::string& path, std::uint64_t size_bytes);
// What Preallocate refuses for want of room in a file system and by that limit, of a file that may not be
// there yet.
Status CheckRoom(const std::string& path, std::uint64_t size_bytes);
// Makes bytes [offset, offset + size_bytes) of a file real, inside of its size, without a look at what its
// file system has left: kBusy where that is not enough, and some of it may be real then.
Status ReserveRange(int fd, const std::string& path, std::uint64_t offset, std::uint64_t size_bytes);
// Gives the memory or the disk's blocks of that range back; it reads as zeros, and its size stays.
Status ReleaseRange(int fd, const std::string& path, std::uint64_t offset, std::uint64_t size_bytes);
// Takes the exclusive flock of an open file; kBusy when another open file description holds it.
Status TryLock(int fd, const std::string& path);
// Gives the flock of an open file back at once, whoever else holds a reference to the open file.
void Unlock(int fd);

// Directories and files with blocks belong to the node's user, and nobody else may open them: a foreign user
// could have made them beforehand, to read along or to put bytes there. `field` names the option in errors,
// which are kDenied and say what to do.

// Makes the directory with mode 0700, or takes one that is this user's with no right for others.
Status MakeOwnDirectory(std::string_view field, const std::string& path);
// The same for one that may have other users' directories in it: root's will do, and others may write there
// if what they do not own they cannot remove (as in /tmp).
Status MakeSharedDirectory(std::string_view field, const std::string& path);
// What these two refuse, of a directory that is there or of making it, and nothing is made. Root's look
// leaves open whose it is: it is for a node of another user's.
Status CheckOwnDirectory(std::string_view field, const std::string& path);
Status CheckSharedDirectory(std::string_view field, const std::string& path);
// The path itself, or the directory above it that is there and is nearest.
std::string NearestPlace(std::string path);
// Whether a file or directory that lies there, or would, lives in the host's memory alone: on a tmpfs or a
// ramfs. A device does not, though its name may.
bool LiesInMemory(const std::string& path);
// An open file in it: a regular one, this user's, mode 0600.
Status CheckOwnFile(int fd, const std::string& path);

// Kernel counter to wake a poller: non-blocking, starts at 0.
Result<Fd> MakeEventFd();
// Adds one to an eventfd. A full counter wakes just as well, so it cannot fail.
void SignalEventFd(int fd);
// A descriptor to poll for the signals of an eventfd without having the eventfd: an epoll set that reports
// each signal once. Who gets it can neither write to the eventfd nor change how writes to it behave, so a
// signal cannot block, whatever the other process does.
Result<Fd> MakeSignalSet(int event_fd);

}  // namespace cistern::io
