# Asks the interpreter where torch is, checks its version, and defines the target torch_wheel.
find_package(Python3 REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(
  COMMAND ${Python3_EXECUTABLE} -c
    "import os; os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD']='0'; import torch; print(torch.__version__.split('+')[0]); print(os.path.dirname(torch.__file__)); print(int(torch._C._GLIBCXX_USE_CXX11_ABI))"
  OUTPUT_VARIABLE torch_facts RESULT_VARIABLE torch_missing OUTPUT_STRIP_TRAILING_WHITESPACE)
if(torch_missing)
  message(FATAL_ERROR "torch is not installed for ${Python3_EXECUTABLE}; install torch==2.13.0 there, then configure again")
endif()
string(REPLACE "\n" ";" torch_facts "${torch_facts}")
list(GET torch_facts 0 TORCH_VERSION)
list(GET torch_facts 1 TORCH_DIR)
list(GET torch_facts 2 TORCH_CXX11_ABI)
if(NOT TORCH_VERSION STREQUAL "2.13.0")
  message(FATAL_ERROR "torch ${TORCH_VERSION} is installed for ${Python3_EXECUTABLE}, but this source is written for 2.13.0")
endif()
add_library(torch_wheel INTERFACE)
target_include_directories(torch_wheel SYSTEM INTERFACE
  ${TORCH_DIR}/include ${TORCH_DIR}/include/torch/csrc/api/include)
target_compile_definitions(torch_wheel INTERFACE _GLIBCXX_USE_CXX11_ABI=${TORCH_CXX11_ABI})
target_link_libraries(torch_wheel INTERFACE
  ${TORCH_DIR}/lib/libtorch.so ${TORCH_DIR}/lib/libtorch_cpu.so ${TORCH_DIR}/lib/libc10.so)
