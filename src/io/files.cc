// SPDX-License-Identifier: Apache-2.0
#include "io/files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/format.h"

namespace cistern::io {
namespace {

int OpenFlags(OpenMode mode) {
  switch (mode) {
    case OpenMode::kRead: return O_RDONLY;
    case OpenMode::kReadWrite: return O_RDWR;
    case OpenMode::kCreate: return O_RDWR | O_CREAT;
    case OpenMode::kCreateNew: return O_RDWR | O_CREAT | O_EXCL;
    case OpenMode::kDirect: return O_RDWR | O_DIRECT;
    case OpenMode::kDirectCreateNew: return O_RDWR | O_DIRECT | O_CREAT | O_EXCL;
  }
  return O_RDONLY;
}

int OpenRetried(const std::string& path, int flags) {
  int fd;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, 0600);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

std::string OctalOf(mode_t mode) {
  std::string digits = "0000";
  for (std::size_t i = 0; i < digits.size(); ++i)
    digits[digits.size() - 1 - i] = static_cast<char>('0' + (mode >> (3 * i) & 7));
  return digits;
}

Status NotOwn(std::string_view field, const std::string& path, const struct stat& info,
              const char* or_whose) {
  return Status(Code::kDenied,
                Text(field, ": ", path, " belongs to user ", info.st_uid, " and is not this node's (user ",
                     ::geteuid(), ")", or_whose, ": remove it, or name another directory"));
}

Status Failed(std::string_view field, const std::string& path) {
  return Status(Code::kIoError, Text(field, ": ", path, ": ", ErrnoText(errno)));
}

bool IsMissing(const std::string& path) {
  struct stat link;
  return ::lstat(path.c_str(), &link) != 0 && errno == ENOENT;
}

std::string ParentOf(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

enum class Kind : std::uint8_t { kOwn, kShared };

// A directory that is there. A link counts as its maker's.
Status CheckRights(Kind kind, bool anybodys, std::string_view field, const std::string& path) {
  struct stat link, info;
  if (::lstat(path.c_str(), &link) != 0 || ::stat(path.c_str(), &info) != 0) return Failed(field, path);
  if (!S_ISDIR(info.st_mode))
    return Status(Code::kInvalid, Text(field, ": ", path, " is no directory: name one"));
  if (S_ISLNK(link.st_mode) && link.st_uid != 0) info.st_uid = link.st_uid;
  const bool own = kind == Kind::kOwn;
  if (!anybodys && info.st_uid != ::geteuid() && (own || info.st_uid != 0))
    return NotOwn(field, path, info, own ? "" : " or root's");
  if (own && (info.st_mode & 077) != 0)
    return Status(Code::kDenied, Text(field, ": ", path, " has mode ", OctalOf(info.st_mode),
                                      ", so other users may look into it: `chmod 700 ", path,
                                      "` if you made it, or name another directory"));
  if (!own && (info.st_mode & 022) != 0 && (info.st_mode & S_ISVTX) == 0)
    return Status(Code::kDenied,
                  Text(field, ": ", path, " has mode ", OctalOf(info.st_mode),
                       ", so other users may replace what is in it: `chmod go-w ", path,
                       "` if you made it, or name a directory in it, which the node then makes for itself"));
  return Status();
}

// Made only where it is not there: a file system that is frozen keeps who makes something waiting.
Status Make(Kind kind, std::string_view field, const std::string& path) {
  if (IsMissing(path) && ::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return Failed(field, path);
  return CheckRights(kind, false, field, path);
}

Status Check(Kind kind, std::string_view field, const std::string& path) {
  if (!IsMissing(path)) return CheckRights(kind, ::geteuid() == 0, field, path);
  return ::access(ParentOf(path).c_str(), W_OK | X_OK) == 0 ? Status() : Failed(field, path);
}

Status NoRoom(const std::string& path, std::uint64_t size_bytes, std::uint64_t has, std::uint64_t left) {
  return Status(Code::kBusy, Text("reserve ", size_bytes, " bytes for ", path, ": it has ", has,
                                  " and its file system has room for ", left, " more"));
}

std::uint64_t RoomLeft(const struct statvfs& fs) { return std::uint64_t{fs.f_bavail} * fs.f_frsize; }

bool HasRoom(const struct statvfs& fs, std::uint64_t has, std::uint64_t size_bytes) {
  const bool bounded = fs.f_blocks != 0;  // a tmpfs without a limit, as a memfd's, reports zero blocks
  return !bounded || size_bytes <= has || size_bytes - has <= RoomLeft(fs);
}

Status NoDirect(const std::string& path) {
  return Status(Code::kIoError, Text("open ", path,
                                     " past the page cache: its file system has no O_DIRECT; choose a "
                                     "directory on another file system, or a block device"));
}

}  // namespace

Result<Fd> OpenFile(const std::string& path, OpenMode mode) {
  int flags = OpenFlags(mode);
  int fd = OpenRetried(path, flags);
  if (fd < 0 && errno == EINVAL && (flags & O_DIRECT) != 0) {
    // A creation that the file system refuses for O_DIRECT leaves the file, made here and only here.
    if (mode == OpenMode::kDirectCreateNew) ::unlink(path.c_str());
    return Error(NoDirect(path));
  }
  if (fd < 0) return Error(Code::kIoError, Text("open ", path, ": ", ErrnoText(errno)));
  return Fd(fd);
}

Result<std::uint64_t> FileSize(int fd, const std::string& path) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return Error(Code::kIoError, Text("size of ", path, ": ", ErrnoText(errno)));
  if (!S_ISBLK(info.st_mode)) return static_cast<std::uint64_t>(info.st_size);
  std::uint64_t capacity = 0;
  if (::ioctl(fd, BLKGETSIZE64, &capacity) != 0) {
    return Error(Code::kIoError, Text("size of block device ", path, ": ", ErrnoText(errno)));
  }
  return capacity;
}

bool IsNamed(int fd) {
  struct stat info;
  return ::fstat(fd, &info) != 0 || info.st_nlink > 0 || S_ISBLK(info.st_mode);
}

Result<DirectLimits> DirectLimitsOf(int fd, const std::string& path) {
  struct statx info = {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_DIOALIGN, &info) != 0) {
    return Error(Code::kIoError, Text("direct limits of ", path, ": ", ErrnoText(errno)));
  }
  bool block_device = S_ISBLK(info.stx_mode);
  if ((info.stx_mask & STATX_DIOALIGN) != 0) {
    if (info.stx_dio_offset_align == 0 || info.stx_dio_mem_align == 0) return Error(NoDirect(path));
    return DirectLimits{info.stx_dio_mem_align, info.stx_dio_offset_align, block_device};
  }
  std::uint32_t align = info.stx_blksize;
  if (block_device) {
    int sector = 0;
    if (::ioctl(fd, BLKSSZGET, &sector) != 0) {
      return Error(Code::kIoError, Text("sector size of ", path, ": ", ErrnoText(errno)));
    }
    align = static_cast<std::uint32_t>(sector);
  } else {
    struct statvfs fs;
    if (::fstatvfs(fd, &fs) == 0 && fs.f_bsize != 0) align = static_cast<std::uint32_t>(fs.f_bsize);
  }
  return DirectLimits{align, align, block_device};
}

Status Preallocate(int fd, const std::string& path, std::uint64_t size_bytes) {
  if (size_bytes == 0) return Status();
  // Asked first, because a file system takes all that it has before it says that this was not enough.
  struct statvfs fs;
  struct stat info;
  if (::fstatvfs(fd, &fs) != 0 || ::fstat(fd, &info) != 0) {
    return Status(Code::kIoError, Text("room for ", path, ": ", ErrnoText(errno)));
  }
  if (S_ISBLK(info.st_mode)) {
    Result<std::uint64_t> capacity = FileSize(fd, path);
    if (!capacity) return std::move(capacity.error());
    if (size_bytes <= *capacity) return Status();
    return Status(Code::kBusy,
                  Text("reserve ", size_bytes, " bytes: block device ", path, " has ", *capacity));
  }
  if (static_cast<std::uint64_t>(info.st_size) < size_bytes) {
    if (Status limit = CheckFileLimit(path, size_bytes); !limit.ok()) return limit;
  }
  const std::uint64_t has = static_cast<std::uint64_t>(info.st_blocks) * 512;
  int error = HasRoom(fs, has, size_bytes) ? EINTR : ENOSPC;
  while (error == EINTR) error = ::posix_fallocate(fd, 0, static_cast<off_t>(size_bytes));
  if (error == 0) return Status();
  if (error != ENOSPC) {
    return Status(Code::kIoError, Text("reserve ", size_bytes, " bytes for ", path, ": ", ErrnoText(error)));
  }
  return NoRoom(path, size_bytes, has, RoomLeft(fs));
}

Status CheckFileLimit(const std::string& path, std::uint64_t size_bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || size_bytes <= limit.rlim_cur) return Status();
  return Status(Code::kBusy,
                Text(path, ": is to have ", size_bytes, " bytes, and a file of this process may have ",
                     limit.rlim_cur, ": raise that limit (ulimit -f, LimitFSIZE= of a unit)"));
}

Status CheckRoom(const std::string& path, std::uint64_t size_bytes) {
  if (Status limit = CheckFileLimit(path, size_bytes); !limit.ok()) return limit;
  struct stat info;
  struct statvfs fs;
  const std::uint64_t has =
      ::stat(path.c_str(), &info) == 0 ? static_cast<std::uint64_t>(info.st_blocks) * 512 : 0;
  if (::statvfs(NearestPlace(path).c_str(), &fs) != 0 || HasRoom(fs, has, size_bytes)) return Status();
  return NoRoom(path, size_bytes, has, RoomLeft(fs));
}

Status ReserveRange(int fd, const std::string& path, std::uint64_t offset, std::uint64_t size_bytes) {
  int error = EINTR;
  while (error == EINTR)
    error = ::posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(size_bytes));
  if (error == 0) return Status();
  return Status(
      error == ENOSPC ? Code::kBusy : Code::kIoError,
      Text("reserve ", size_bytes, " bytes of ", path, " at ", Hex(offset), ": ", ErrnoText(error)));
}

Status ReleaseRange(int fd, const std::string& path, std::uint64_t offset, std::uint64_t size_bytes) {
  while (::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                     static_cast<off_t>(size_bytes)) != 0) {
    if (errno != EINTR)
      return Status(Code::kIoError, Text("release ", size_bytes, " bytes of ", path, " at ", Hex(offset),
                                         ": ", ErrnoText(errno)));
  }
  return Status();
}

Status TryLock(int fd, const std::string& path) {
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return Status();
  if (errno == EWOULDBLOCK) return Status(Code::kBusy, Text("lock ", path, ": another process holds it"));
  return Status(Code::kIoError, Text("lock ", path, ": ", ErrnoText(errno)));
}

void Unlock(int fd) { ::flock(fd, LOCK_UN); }

Status MakeOwnDirectory(std::string_view field, const std::string& path) {
  return Make(Kind::kOwn, field, path);
}

Status MakeSharedDirectory(std::string_view field, const std::string& path) {
  return Make(Kind::kShared, field, path);
}

Status CheckOwnDirectory(std::string_view field, const std::string& path) {
  return Check(Kind::kOwn, field, path);
}

Status CheckSharedDirectory(std::string_view field, const std::string& path) {
  return Check(Kind::kShared, field, path);
}

std::string NearestPlace(std::string path) {
  struct stat info;
  while (::stat(path.c_str(), &info) != 0 && path != "/" && path != ".") path = ParentOf(std::move(path));
  return path;
}

bool LiesInMemory(const std::string& path) {
  const std::string place = NearestPlace(path);
  struct stat info;
  struct statfs fs;
  if (::stat(place.c_str(), &info) != 0 || (!S_ISDIR(info.st_mode) && !S_ISREG(info.st_mode))) return false;
  return ::statfs(place.c_str(), &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC);
}

Status CheckOwnFile(int fd, const std::string& path) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return Status(Code::kIoError, Text(path, ": ", ErrnoText(errno)));
  if (S_ISREG(info.st_mode) && info.st_uid == ::geteuid() && (info.st_mode & 077) == 0) return Status();
  return Status(
      Code::kDenied,
      Text(path, " is a ", S_ISREG(info.st_mode) ? "file" : "special file", " of user ", info.st_uid,
           " with mode ", OctalOf(info.st_mode), ", and a node (this one is user ", ::geteuid(),
           ") takes its own files of mode 0600 alone: remove it, or name another directory"));
}

Result<Fd> MakeEventFd() {
  Fd fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!fd.valid()) return Error(Code::kIoError, Text("eventfd: ", ErrnoText(errno)));
  return fd;
}

void SignalEventFd(int fd) {
  std::uint64_t one = 1;
  while (::write(fd, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

Result<Fd> MakeSignalSet(int event_fd) {
  Fd set(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event signals{.events = EPOLLIN | EPOLLET, .data = {}};
  if (!set.valid() || ::epoll_ctl(set.get(), EPOLL_CTL_ADD, event_fd, &signals) != 0)
    return Error(Code::kIoError, Text("epoll set of an eventfd: ", ErrnoText(errno)));
  return set;
}

}  // namespace cistern::io
