"""Defines Xids: the meaning, severity and remedy of each code of NVIDIA's driver.

Source: NVIDIA's Xid catalogue (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html)
as gpud (leptonai/gpud @ 4a8de33a, Apache-2.0) has it. Severity follows from NVIDIA's immediate
action, even if gpud's column differs; exceptions are given in their row.
Codes from 162 on are newer than NVIDIA's column of actions: their action is None and their severity
from what they mean. Codes from 174 on are not in the catalogue: their names are those of NVIDIA's open
driver (nverror.h of 595.45.04 and 615.71.09), 185 that of its release notes of GPU Operational Events R620;
183 and 184 are not published. `gpuwarden.nvlink5` decodes the text of codes 144 to 150.
"""

from dataclasses import dataclass

INFO, WARNING, CRITICAL = "info", "warning", "critical"

ACTIONS: dict[str, tuple[str, str]] = {
    "IGNORE": (INFO, "nothing"),
    "RESTART_APP": (WARNING, "restart the application"),
    "RESTART_VM": (WARNING, "restart the virtual machine"),
    "RESET_GPU": (CRITICAL, "drain the node and reset the GPU"),
    "RESTART_BM": (CRITICAL, "reboot the node"),
    "UPDATE_SWFW": (WARNING, "update driver and firmware"),
    "CHECK_MECHANICALS": (CRITICAL, "check the power cables and the seat of the board"),
    "CHECK_UVM": (WARNING, "reset the GPU if unified memory or vGPU is in use, else nothing"),
    "CONTACT_SUPPORT": (WARNING, "contact NVIDIA support if it comes again"),
    "WORKFLOW_XID_45": (
        INFO,
        "look for the Xid before it; restart the fabric manager if there is none",
    ),
    "WORKFLOW_XID_48": (CRITICAL, "drain the node and reset the GPU"),
    "WORKFLOW_NVLINK_ERR": (CRITICAL, "drain the node and reset the GPU"),
    "WORKFLOW_NVLINK5_ERR": (
        WARNING,
        "look for an Xid 154 beside it, which says what the GPU needs",
    ),
    "XID_154": (WARNING, "do what it asks for"),
    "XID_154_EVAL": (
        WARNING,
        "do what the Xid 154 beside it asks for; restart the application if there is none",
    ),
}
"""Severity and remedy by NVIDIA's immediate action; only `gpuwarden.nvlink5` uses the last one."""


@dataclass(frozen=True, slots=True)
class XidInfo:
    """One row of the catalogue."""

    code: int
    mnemonic: str | None
    """The driver's name of the code; None: not published."""
    meaning: str
    action: str | None
    """NVIDIA's immediate action, a key of `ACTIONS`; None: NVIDIA has not said."""
    severity: str
    """info, warning or critical, as for events."""
    remedy: str
    """What to do, as the end of a sentence."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The recovery action of an Xid 154."""

    action: str
    severity: str
    remedy: str


RECOVERIES: dict[int, Recovery] = {
    0: Recovery("NONE", INFO, "nothing, the GPU has recovered"),
    1: Recovery("RESET_GPU", CRITICAL, "drain the node and reset the GPU"),
    2: Recovery("RESTART_BM", CRITICAL, "reboot the node"),
    3: Recovery("DRAIN_P2P", WARNING, "stop the jobs that use peer access to the GPU"),
    4: Recovery(
        "DRAIN_AND_RESET", CRITICAL, "let no job start on the GPU, drain it, then reset it"
    ),
}
"""Number in the text of an Xid 154 (`nvmlDeviceGpuRecoveryAction_t` of nvml.h)."""


def xid_info(code: int) -> XidInfo:
    """The row of a code; one that says so for a code that is not in the catalogue."""
    found = XIDS.get(code)
    if found is not None:
        return found
    return XidInfo(
        code,
        None,
        "not in the catalogue",
        None,
        WARNING,
        "look it up in NVIDIA's catalogue of Xids",
    )


def _xid(
    code: int,
    mnemonic: str | None,
    meaning: str,
    action: str | None,
    *,
    severity: str | None = None,
    remedy: str | None = None,
) -> XidInfo:
    usual = ACTIONS.get(action or "", (WARNING, "contact NVIDIA support if it comes again"))
    return XidInfo(code, mnemonic, meaning, action, severity or usual[0], remedy or usual[1])


# fmt: off
_ROWS: tuple[XidInfo, ...] = (
    # code, mnemonic, meaning, NVIDIA's immediate action, what departs from the action's usual
    _xid(1, "ROBUST_CHANNEL_FIFO_ERROR_FIFO_METHOD", "Invalid or corrupted push buffer stream", "CONTACT_SUPPORT"),
    _xid(2, "ROBUST_CHANNEL_FIFO_ERROR_SW_METHOD", "Invalid or corrupted push buffer stream", "CONTACT_SUPPORT"),
    _xid(3, "ROBUST_CHANNEL_FIFO_ERROR_UNK_METHOD", "Invalid or corrupted push buffer stream", "CONTACT_SUPPORT"),
    _xid(4, "ROBUST_CHANNEL_FIFO_ERROR_CHANNEL_BUSY", "Invalid or corrupted push buffer stream", "CONTACT_SUPPORT"),
    _xid(5, "ROBUST_CHANNEL_FIFO_ERROR_RUNOUT_OVERFLOW", "Not used by drivers of today", "CONTACT_SUPPORT"),
    _xid(6, "ROBUST_CHANNEL_FIFO_ERROR_PARSE_ERR", "Invalid or corrupted push buffer stream", "CONTACT_SUPPORT"),
    _xid(7, "ROBUST_CHANNEL_FIFO_ERROR_PTE_ERR", "Invalid or corrupted push buffer address", "CONTACT_SUPPORT"),
    _xid(8, "ROBUST_CHANNEL_FIFO_ERROR_IDLE_TIMEOUT", "GPU stopped processing", "RESTART_APP"),
    _xid(9, "ROBUST_CHANNEL_GR_ERROR_INSTANCE", "Driver error while programming the GPU", "CONTACT_SUPPORT"),
    _xid(10, "ROBUST_CHANNEL_GR_ERROR_SINGLE_STEP", "Not used by drivers of today", "CONTACT_SUPPORT"),
    _xid(11, "ROBUST_CHANNEL_GR_ERROR_MISSING_HW", "Invalid or corrupted push buffer stream", "RESTART_APP"),
    _xid(12, "ROBUST_CHANNEL_GR_ERROR_SW_METHOD", "Driver error handling GPU exception", "CONTACT_SUPPORT"),
    _xid(13, "ROBUST_CHANNEL_GR_EXCEPTION", "Exception in the graphics engine, mostly an out-of-range access or a bug of the application's kernel", "RESTART_APP", remedy="restart the application; the same GPU with several applications: run dcgmi diag -r 3"),
    _xid(14, "ROBUST_CHANNEL_FAKE_ERROR", "Not used by drivers of today", "IGNORE"),
    _xid(15, "ROBUST_CHANNEL_SCANLINE_TIMEOUT", "Not used by drivers of today", "CONTACT_SUPPORT"),
    _xid(16, "ROBUST_CHANNEL_VBLANK_CALLBACK_TIMEOUT", "Display engine hung", "CONTACT_SUPPORT"),
    _xid(17, "ROBUST_CHANNEL_PARAMETER_ERROR", "Not used by drivers of today", "CONTACT_SUPPORT"),
    _xid(18, "ROBUST_CHANNEL_BUS_MASTER_TIMEOUT_ERROR", "Bus mastering disabled in PCI Config Space", "CONTACT_SUPPORT"),
    _xid(19, "ROBUST_CHANNEL_DISP_MISSED_NOTIFIER", "Display Engine error", "CONTACT_SUPPORT"),
    _xid(20, "ROBUST_CHANNEL_MPEG_ERROR_SW_METHOD", "Invalid or corrupted Mpeg push buffer", "CONTACT_SUPPORT"),
    _xid(21, "ROBUST_CHANNEL_ME_ERROR_SW_METHOD", "Invalid or corrupted Motion Estimation push buffer", "CONTACT_SUPPORT"),
    _xid(22, "ROBUST_CHANNEL_VP_ERROR_SW_METHOD", "Invalid or corrupted Video Processor push buffer", "CONTACT_SUPPORT"),
    _xid(23, "ROBUST_CHANNEL_RC_LOGGING_ENABLED", "Not used by drivers of today", "CONTACT_SUPPORT"),
    _xid(24, "ROBUST_CHANNEL_GR_SEMAPHORE_TIMEOUT", "GPU semaphore timeout", "CONTACT_SUPPORT"),
    _xid(25, "ROBUST_CHANNEL_GR_ILLEGAL_NOTIFY", "Invalid or illegal push buffer stream", "RESTART_APP"),
    _xid(26, "ROBUST_CHANNEL_FIFO_ERROR_FBISTATE_TIMEOUT", "Framebuffer timeout", "CONTACT_SUPPORT"),
    _xid(27, "ROBUST_CHANNEL_VP_ERROR", "Video processor exception", "CONTACT_SUPPORT"),
    _xid(28, "ROBUST_CHANNEL_VP2_ERROR", "Video processor exception", "CONTACT_SUPPORT"),
    _xid(29, "ROBUST_CHANNEL_BSP_ERROR", "Video processor exception", "CONTACT_SUPPORT"),
    _xid(30, "ROBUST_CHANNEL_BAD_ADDR_ACCESS", "GPU semaphore access error", "CONTACT_SUPPORT"),
    _xid(31, "ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT", "GPU memory page fault: the application touched an address that is not mapped", "RESTART_APP", remedy="restart the application; the same GPU with several applications: run dcgmi diag -r 3"),
    _xid(32, "ROBUST_CHANNEL_PBDMA_ERROR", "Invalid or corrupted push buffer stream", "RESTART_APP"),
    _xid(33, "ROBUST_CHANNEL_SEC_ERROR", "Internal micro-controller error", "CONTACT_SUPPORT"),
    _xid(34, "ROBUST_CHANNEL_MSVLD_ERROR", "Video processor exception", "CONTACT_SUPPORT"),
    _xid(35, "ROBUST_CHANNEL_MSPDEC_ERROR", "Video processor exception", "CONTACT_SUPPORT"),
    _xid(36, "ROBUST_CHANNEL_MSPPP_ERROR", "Video processor exception", "CONTACT_SUPPORT"),
    _xid(37, "ROBUST_CHANNEL_FECS_ERR_UNIMP_FIRMWARE_METHOD", "Driver firmware error", "IGNORE"),
    _xid(38, "ROBUST_CHANNEL_FECS_ERR_WATCHDOG_TIMEOUT", "Driver firmware watchdog timed out", "IGNORE"),
    _xid(39, "ROBUST_CHANNEL_CE0_ERROR", "Copy Engine Exception", "RESTART_APP"),
    _xid(40, "ROBUST_CHANNEL_CE1_ERROR", "Copy Engine Exception", "RESTART_APP"),
    _xid(41, "ROBUST_CHANNEL_CE2_ERROR", "Copy Engine Exception", "RESTART_APP"),
    _xid(42, "ROBUST_CHANNEL_VIC_ERROR", "Video processor exception", "CONTACT_SUPPORT"),
    _xid(43, "ROBUST_CHANNEL_RESETCHANNEL_VERIF_ERROR", "A channel was reset after an error of its application", "IGNORE", remedy="nothing, look for the error of the application"),
    _xid(44, "ROBUST_CHANNEL_GR_FAULT_DURING_CTXSW", "Graphics Engine fault during context switch", "IGNORE"),
    _xid(45, "ROBUST_CHANNEL_PREEMPTIVE_REMOVAL", "A channel was removed because of an earlier error", "WORKFLOW_XID_45"),
    _xid(46, "ROBUST_CHANNEL_GPU_TIMEOUT_ERROR", "GPU stopped processing", "RESET_GPU"),
    _xid(47, "ROBUST_CHANNEL_NVENC0_ERROR", "Video processor exception", "CONTACT_SUPPORT"),
    _xid(48, "ROBUST_CHANNEL_GPU_ECC_DBE", "Double-bit ECC error: memory contents were lost", "WORKFLOW_XID_48", remedy="drain the node and reset the GPU; replace it if it comes again"),
    _xid(49, "SILENT_RUNNING_CONSTANT_LEVEL_SET_BY_REGISTRY", "Not used by drivers of today", "CONTACT_SUPPORT"),
    _xid(50, "SILENT_RUNNING_LEVEL_TRANSITION_DUE_TO_RC_ERROR", "Not used by drivers of today", "CONTACT_SUPPORT"),
    _xid(51, "SILENT_RUNNING_STRESS_TEST_FAILURE", "Not used by drivers of today", "CONTACT_SUPPORT"),
    _xid(52, "SILENT_RUNNING_LEVEL_TRANS_DUE_TO_TEMP_RISE", "Not used by drivers of today", "CONTACT_SUPPORT"),
    _xid(53, "SILENT_RUNNING_TEMP_REDUCED_CLOCKING", "Not used by drivers of today", "CONTACT_SUPPORT"),
    _xid(54, "SILENT_RUNNING_PWR_REDUCED_CLOCKING", "Auxiliary power is not connected to the board", "CHECK_MECHANICALS"),
    _xid(55, "SILENT_RUNNING_TEMPERATURE_READ_ERROR", "Not used by drivers of today", "CONTACT_SUPPORT"),
    _xid(56, "DISPLAY_CHANNEL_EXCEPTION", "Display Engine error", "CONTACT_SUPPORT"),
    _xid(57, "FB_LINK_TRAINING_FAILURE_ERROR", "Error programming video memory interface", "CONTACT_SUPPORT"),
    _xid(58, "FB_MEMORY_ERROR", "Unstable video memory interface detected", "CONTACT_SUPPORT"),
    _xid(59, "PMU_ERROR", "Internal micro-controller error (older drivers)", "CONTACT_SUPPORT"),
    _xid(60, "ROBUST_CHANNEL_SEC2_ERROR", "Video processor exception", "RESTART_APP"),
    _xid(61, "PMU_BREAKPOINT", "Internal micro-controller stopped at a breakpoint or warning", "CONTACT_SUPPORT"),
    _xid(62, "PMU_HALT_ERROR", "Internal micro-controller halted", "RESET_GPU", remedy="drain the node and reset the GPU; contact NVIDIA support if it comes again"),
    _xid(63, "INFOROM_DRAM_RETIREMENT_EVENT", "A broken memory row was recorded for remapping, or a page for retirement", "IGNORE", remedy="nothing at once, reset the GPU at the next pause so that the row is remapped"),
    _xid(64, "INFOROM_DRAM_RETIREMENT_FAILURE", "A broken memory row could not be remapped, or a page not retired", "RESET_GPU", remedy="drain the node, reset the GPU and have it replaced"),
    _xid(65, "ROBUST_CHANNEL_NVENC1_ERROR", "Video processor exception", "CONTACT_SUPPORT"),
    _xid(66, "ROBUST_CHANNEL_FECS_ERR_REG_ACCESS_VIOLATION", "Illegal access by driver", "IGNORE"),
    _xid(67, "ROBUST_CHANNEL_FECS_ERR_VERIF_VIOLATION", "Illegal access by driver", "IGNORE"),
    _xid(68, "ROBUST_CHANNEL_NVDEC0_ERROR", "NVDEC0 Exception", "RESTART_APP"),
    _xid(69, "ROBUST_CHANNEL_GR_CLASS_ERROR", "Graphics Engine class error", "RESTART_APP"),
    _xid(70, "ROBUST_CHANNEL_CE3_ERROR", "CE3: unknown copy engine error", "RESTART_APP"),
    _xid(71, "ROBUST_CHANNEL_CE4_ERROR", "CE4: unknown copy engine error", "RESTART_APP"),
    _xid(72, "ROBUST_CHANNEL_CE5_ERROR", "CE5: unknown copy engine error", "RESTART_APP"),
    _xid(73, "ROBUST_CHANNEL_NVENC2_ERROR", "NVENC2 Error", "CONTACT_SUPPORT"),
    _xid(74, "NVLINK_ERROR", "NVLink error", "WORKFLOW_NVLINK_ERR", remedy="drain the node, reset the GPU, then check the NVLink bridge or the switch"),
    _xid(75, "ROBUST_CHANNEL_CE6_ERROR", "CE6: unknown copy engine error", "RESTART_APP"),
    _xid(76, "ROBUST_CHANNEL_CE7_ERROR", "CE7: unknown copy engine error", "RESTART_APP"),
    _xid(77, "ROBUST_CHANNEL_CE8_ERROR", "CE8: unknown copy engine error", "RESTART_APP"),
    _xid(78, "VGPU_START_ERROR", "A vGPU could not be started", "UPDATE_SWFW"),
    _xid(79, "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS", "GPU has fallen off the bus", "RESTART_BM", remedy="reboot the node; reseat or replace the GPU if it comes again"),
    _xid(80, "PBDMA_PUSHBUFFER_CRC_MISMATCH", "Corrupted data sent to GPU", "RESTART_APP"),
    _xid(81, "ROBUST_CHANNEL_VGA_SUBSYSTEM_ERROR", "VGA Subsystem Error", "CONTACT_SUPPORT"),
    _xid(82, "ROBUST_CHANNEL_NVJPG0_ERROR", "NVJPG0 Error", "RESTART_APP"),
    _xid(83, "ROBUST_CHANNEL_NVDEC1_ERROR", "NVDEC1 Error", "RESTART_APP"),
    _xid(84, "ROBUST_CHANNEL_NVDEC2_ERROR", "NVDEC2 Error", "RESTART_APP"),
    _xid(85, "ROBUST_CHANNEL_CE9_ERROR", "CE9: unknown copy engine error", "RESTART_APP"),
    _xid(86, "ROBUST_CHANNEL_OFA0_ERROR", "OFA Exception", "RESTART_APP"),
    _xid(87, "NVTELEMETRY_DRIVER_REPORT", "Reserved by NVIDIA", "CONTACT_SUPPORT"),
    _xid(88, "ROBUST_CHANNEL_NVDEC3_ERROR", "NVDEC3 Error", "RESTART_APP"),
    _xid(89, "ROBUST_CHANNEL_NVDEC4_ERROR", "NVDEC4 Error", "RESTART_APP"),
    _xid(90, "LTC_ERROR", "Reserved by NVIDIA", "CONTACT_SUPPORT"),
    _xid(91, "RESERVED_XID", "Reserved by NVIDIA", "CONTACT_SUPPORT"),
    _xid(92, "EXCESSIVE_SBE_INTERRUPTS", "High rate of corrected single-bit ECC errors", "IGNORE", severity=WARNING, remedy="nothing at once, contact NVIDIA support if it continues"),
    _xid(93, "INFOROM_ERASE_LIMIT_EXCEEDED", "Non-fatal violation of provisioned InfoROM wear limit", "IGNORE"),
    _xid(94, "ROBUST_CHANNEL_CONTAINED_ERROR", "Contained memory error: only the application that used the memory is affected", "RESTART_APP", remedy="restart the application that was hit, no other"),
    _xid(95, "ROBUST_CHANNEL_UNCONTAINED_ERROR", "Uncontained memory error: every application on the GPU may be affected", "RESET_GPU", remedy="drain the node and reset the GPU; restart every application on it"),
    _xid(96, "ROBUST_CHANNEL_NVDEC5_ERROR", "NVDEC5 Error", "RESTART_APP"),
    _xid(97, "ROBUST_CHANNEL_NVDEC6_ERROR", "NVDEC6 Error", "RESTART_APP"),
    _xid(98, "ROBUST_CHANNEL_NVDEC7_ERROR", "NVDEC7 Error", "RESTART_APP"),
    _xid(99, "ROBUST_CHANNEL_NVJPG1_ERROR", "NVJPG1 Error", "RESTART_APP"),
    _xid(100, "ROBUST_CHANNEL_NVJPG2_ERROR", "NVJPG2 Error", "RESTART_APP"),
    _xid(101, "ROBUST_CHANNEL_NVJPG3_ERROR", "NVJPG3 Error", "RESTART_APP"),
    _xid(102, "ROBUST_CHANNEL_NVJPG4_ERROR", "NVJPG4 Error", "RESTART_APP"),
    _xid(103, "ROBUST_CHANNEL_NVJPG5_ERROR", "NVJPG5 Error", "RESTART_APP"),
    _xid(104, "ROBUST_CHANNEL_NVJPG6_ERROR", "NVJPG6 Error", "RESTART_APP"),
    _xid(105, "ROBUST_CHANNEL_NVJPG7_ERROR", "NVJPG7 Error", "RESTART_APP"),
    _xid(106, "SMBPBI_TEST_MESSAGE", "SMBPBI Test Message", "IGNORE"),
    _xid(107, "SMBPBI_TEST_MESSAGE_SILENT", "SMBPBI Test Message Silent", "IGNORE"),
    _xid(108, "NVLINK_REMOTE_TRANSLATION_ERROR", "An address of a peer could not be translated; not used by drivers of today", "IGNORE"),
    _xid(109, "ROBUST_CHANNEL_CTXSW_TIMEOUT_ERROR", "Context switch timed out", "RESET_GPU"),
    _xid(110, "SEC_FAULT_ERROR", "Security fault", "RESET_GPU"),
    _xid(111, "BUNDLE_ERROR_EVENT", "Display Bundle Error Event", "CONTACT_SUPPORT"),
    _xid(112, "DISP_SUPERVISOR_ERROR", "Display Supervisor Error", "CONTACT_SUPPORT"),
    _xid(113, "DP_LT_FAILURE", "DP link training error", "CONTACT_SUPPORT"),
    _xid(114, "HEAD_RG_UNDERFLOW", "Display Pipeline Underflow Error", "CONTACT_SUPPORT"),
    _xid(115, "CORE_CHANNEL_REGS", "Display Core Channel Error", "CONTACT_SUPPORT"),
    _xid(116, "WINDOW_CHANNEL_REGS", "Display Window Channel Error", "CONTACT_SUPPORT"),
    _xid(117, "CURSOR_CHANNEL_REGS", "Display Cursor Channel Error", "CONTACT_SUPPORT"),
    _xid(118, "HEAD_REGS", "Display Pixel Pipeline Error", "CONTACT_SUPPORT"),
    _xid(119, "GSP_RPC_TIMEOUT", "The GPU's system processor (GSP) did not answer the driver in time", "RESET_GPU", remedy="drain the node and reset the GPU, reboot if that fails; update the driver if it comes again"),
    _xid(120, "GSP_ERROR", "Error of the GPU's system processor (GSP)", "RESET_GPU", remedy="drain the node and reset the GPU, reboot if that fails; update the driver if it comes again"),
    _xid(121, "C2C_ERROR", "Error of the chip-to-chip link (C2C)", "IGNORE", severity=WARNING, remedy="nothing at once, contact NVIDIA support if it comes again"),
    _xid(122, "SPI_PMU_RPC_READ_FAIL", "SPI PMU RPC Read Failure", "CONTACT_SUPPORT"),
    _xid(123, "SPI_PMU_RPC_WRITE_FAIL", "SPI PMU RPC Write Failure", "CONTACT_SUPPORT"),
    _xid(124, "SPI_PMU_RPC_ERASE_FAIL", "SPI PMU RPC Erase Failure", "CONTACT_SUPPORT"),
    _xid(125, "INFOROM_FS_ERROR", "Inforom FS Failure", "CONTACT_SUPPORT"),
    _xid(126, "ROBUST_CHANNEL_CE10_ERROR", "CE10: unknown copy engine error", "RESTART_APP"),
    _xid(127, "ROBUST_CHANNEL_CE11_ERROR", "CE11: unknown copy engine error", "RESTART_APP"),
    _xid(128, "ROBUST_CHANNEL_CE12_ERROR", "CE12: unknown copy engine error", "RESTART_APP"),
    _xid(129, "ROBUST_CHANNEL_CE13_ERROR", "CE13: unknown copy engine error", "RESTART_APP"),
    _xid(130, "ROBUST_CHANNEL_CE14_ERROR", "CE14: unknown copy engine error", "RESTART_APP"),
    _xid(131, "ROBUST_CHANNEL_CE15_ERROR", "CE15: unknown copy engine error", "RESTART_APP"),
    _xid(132, "ROBUST_CHANNEL_CE16_ERROR", "CE16: unknown copy engine error", "RESTART_APP"),
    _xid(133, "ROBUST_CHANNEL_CE17_ERROR", "CE17: unknown copy engine error", "RESTART_APP"),
    _xid(134, "ROBUST_CHANNEL_CE18_ERROR", "CE18: unknown copy engine error", "RESTART_APP"),
    _xid(135, "ROBUST_CHANNEL_CE19_ERROR", "CE19: unknown copy engine error", "RESTART_APP"),
    _xid(136, "ALI_TRAINING_FAIL", "NVLink training failed", "RESET_GPU", remedy="drain the node and reset the GPU; check links and cables if it comes again"),
    _xid(137, "NVLINK_PRIV_ERR", "NVLink privilege error: a peer touched memory that it may not", "IGNORE", severity=WARNING, remedy="nothing on this GPU, look for the fault of its peer"),
    _xid(138, "ROBUST_CHANNEL_DLA_ERROR", "Reserved by NVIDIA", "CONTACT_SUPPORT"),
    _xid(139, "ROBUST_CHANNEL_OFA1_ERROR", "OFA1 Error", "RESTART_APP"),
    _xid(140, "UNRECOVERABLE_ECC_ERROR_ESCAPE", "Unrecovered ECC error", "RESET_GPU"),
    _xid(141, "ROBUST_CHANNEL_FAST_PATH_ERROR", "CUDA Fast Path Error", "IGNORE"),
    _xid(142, "ROBUST_CHANNEL_NVENC3_ERROR", "NVENC3 Error", "CONTACT_SUPPORT"),
    _xid(143, "GPU_INIT_ERROR", "The GPU could not be initialized", "RESET_GPU", remedy="drain the node and reset the GPU; have the hardware looked at if it comes again"),
    _xid(144, "NVLINK_SAW_ERROR", "NVLINK: SAW Error", "WORKFLOW_NVLINK5_ERR"),
    _xid(145, "NVLINK_RLW_ERROR", "NVLINK: RLW Error", "WORKFLOW_NVLINK5_ERR"),
    _xid(146, "NVLINK_TLW_ERROR", "NVLINK: TLW Error", "WORKFLOW_NVLINK5_ERR"),
    _xid(147, "NVLINK_TREX_ERROR", "NVLINK: TREX Error", "WORKFLOW_NVLINK5_ERR"),
    _xid(148, "NVLINK_NVLPW_CTRL_ERROR", "NVLINK: NVLPW_CTRL Error", "WORKFLOW_NVLINK5_ERR"),
    _xid(149, "NVLINK_NETIR_ERROR", "NVLINK: NETIR Error", "WORKFLOW_NVLINK5_ERR"),
    _xid(150, "NVLINK_MSE_ERROR", "NVLINK: MSE Error", "WORKFLOW_NVLINK5_ERR"),
    _xid(151, "ROBUST_CHANNEL_KEY_ROTATION_ERROR", "Key rotation error", "RESTART_VM"),
    _xid(152, "ROBUST_CHANNEL_DLA_SMMU_ERROR", "DLA SMMU Error", "IGNORE"),
    _xid(153, "ROBUST_CHANNEL_DLA_TIMEOUT", "DLA timeout Error", "IGNORE"),
    _xid(154, "GPU_RECOVERY_ACTION_CHANGED", "The recovery action that the GPU needs has changed", "XID_154"),
    _xid(155, "NVLINK_SW_DEFINED_ERROR", "NVLINK: SW Defined Error", "RESET_GPU"),
    _xid(156, "RESOURCE_RETIREMENT_EVENT", "Resource Retirement Event", "RESET_GPU"),
    _xid(157, "RESOURCE_RETIREMENT_FAILURE", "Resource Retirement Failure", "IGNORE", severity=WARNING, remedy="nothing at once, contact NVIDIA support"),
    _xid(158, "GPU_FATAL_TIMEOUT", "GPU Fatal Timeout", "RESET_GPU"),
    _xid(159, "ROBUST_CHANNEL_CHI_NON_DATA_ERROR", "CHI Non-Data Error", "CHECK_UVM"),
    # the driver's text: "marking channel for repair, perform GPU reset or node reboot"; "no more spare channels"
    _xid(160, "CHANNEL_RETIREMENT_EVENT", "A broken memory channel was marked for repair with a spare one", "IGNORE", severity=WARNING, remedy="nothing at once, reset the GPU or reboot the node, as the line asks, at the next pause so that the repair takes effect"),
    _xid(161, "CHANNEL_RETIREMENT_FAILURE", "A broken memory channel could not be repaired: no spare is left", "IGNORE", severity=WARNING, remedy="nothing at once, contact NVIDIA support"),
    _xid(162, "PSHC_REENGAGED", "Power smoothing hardware is engaged again", None, severity=INFO, remedy="nothing"),
    _xid(163, "PSHC_DISENGAGED", "Power smoothing hardware was disengaged", None, remedy="check the cooling; after a timeout reload the driver or reset the GPU"),
    _xid(164, "PSHC_LOW_LIFETIME", "Power smoothing hardware has little lifetime left", None, severity=INFO, remedy="plan to replace the board where its power must be smooth"),
    _xid(165, "PSHC_ZERO_LIFETIME", "Power smoothing hardware has no lifetime left", None, remedy="replace the board where its power must be smooth"),
    _xid(166, "NVLINK_SECURE_CRYPTO_ERR", "Traffic before the link was set up for encryption", None, remedy="reset the GPU; check the confidential computing setup"),
    _xid(167, "PCIE_FATAL_TIMEOUT", "Fatal PCIe timeout", None, severity=CRITICAL, remedy="reboot the node; reseat the GPU if it comes again"),
    _xid(168, "REDUCED_GPU_MEMORY_CAPACITY", "Errors in the write protected region: the GPU has less memory", None, remedy="enable ECC, so that broken rows can be remapped, and reset the GPU"),
    _xid(169, "SEC2_HALT_ERROR", "Internal micro-controller (SEC2) halted", None, severity=CRITICAL, remedy="drain the node and reset the GPU"),
    _xid(170, "NVLINK_SECURE_OTHER", "Interrupt in confidential computing mode", None, remedy="restart the application"),
    _xid(171, "UNCORRECTABLE_DRAM_ERROR", "Uncorrectable DRAM error; tells more about an Xid 48", None, severity=CRITICAL, remedy="as for the Xid 48 beside it"),
    _xid(172, "UNCORRECTABLE_SRAM_ERROR", "Uncorrectable SRAM error; tells more about an Xid 48", None, severity=CRITICAL, remedy="as for the Xid 48 beside it"),
    _xid(173, "C2C_FATAL_LINK_FAILURE", "Fatal failure of the chip-to-chip link (C2C)", None, severity=CRITICAL, remedy="reboot the node; contact NVIDIA support if it comes again"),
    _xid(174, "ROBUST_CHANNEL_RESETCHANNEL_KILL_PROCESS_SILENT", "A process was ended with its channel; not used by drivers from 615 on", None, remedy="restart the application"),
    # critical: kernel_gsp.c of 615.71.09 calls 175 and 179 fatal, and marks the GPU for reset with them and with 182
    _xid(175, "MEMORY_SUBSYSTEM_ERROR", "The GPU's memory does not answer", None, severity=CRITICAL, remedy="drain the node and reset the GPU, reboot if that fails"),
    _xid(176, "PCIE_CORRECTABLE_ERROR_FAULT", "Corrected PCIe errors", None, remedy="nothing at once, reseat the GPU if it comes again"),
    _xid(177, "BANK_REMAPPING_EVENT", "A broken memory bank was recorded for remapping", None, severity=INFO, remedy="nothing at once, reset the GPU at the next pause so that the bank is remapped"),
    _xid(178, "REMOTE_TRANSLATION_POISON_ERROR", "Poisoned data in the translation of a peer's address", None),
    _xid(179, "GPU_CONTAINMENT_ERROR", "The GPU was cut off from its chip-to-chip link (C2C) to contain an error", None, severity=CRITICAL, remedy="drain the node and reset the GPU, reboot if that fails"),
    _xid(180, "RIST_ERROR", "RIST error, which NVIDIA has not described", None),
    _xid(181, "C2C_TRAINING_FAILURE", "Training of the chip-to-chip link (C2C) failed", None, severity=CRITICAL, remedy="reboot the node; contact NVIDIA support if it comes again"),
    _xid(182, "PCIE_RESET_FAILURE", "The GPU's PCIe link did not come back after a reset", None, severity=CRITICAL, remedy="drain the node and reset the GPU, reboot if that fails"),
    _xid(185, "SPARING_EVENT", "A spare part of the GPU has changed its state", None, remedy="nothing at once, look for an Xid 154 beside it"),
)
# fmt: on

XIDS: dict[int, XidInfo] = {row.code: row for row in _ROWS}
"""Code to row, ascending."""
