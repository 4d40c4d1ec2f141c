# SPDX-License-Identifier: Apache-2.0
# Installs the build at BUILD into a folder of its own, configures and builds EXAMPLES against it, and runs
# each program that examples/CMakeLists.txt gives to ctest.
set(prefix ${BUILD}/package/prefix)
file(REMOVE_RECURSE ${BUILD}/package)
function(step)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE rc)
  if(NOT rc EQUAL 0)
    message(FATAL_ERROR "failed: ${ARGV}")
  endif()
endfunction()
step(${CMAKE_COMMAND} --install ${BUILD} --component development --prefix ${prefix})
if(EXISTS ${prefix}/bin OR EXISTS ${prefix}/cistern)
  message(FATAL_ERROR "the component development has programs, or what is the wheel's")
endif()
step(${CMAKE_COMMAND} -G Ninja -S ${EXAMPLES} -B ${BUILD}/package/build -D CMAKE_PREFIX_PATH=${prefix}
  -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_BUILD_TYPE=Release)
step(${CMAKE_COMMAND} --build ${BUILD}/package/build)
step(${CMAKE_CTEST_COMMAND} --test-dir ${BUILD}/package/build --output-on-failure --no-tests=error)
