import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Button, IconButton } from "../ui/button";
import { Microphone as MicrophoneIcon, Stop } from "../ui/icons";
import { toastError } from "../ui/toast";
import { LONGEST_S, Microphone } from "./microphone";

/** Records with the microphone and gives the file to `onFile`. */
export function RecordButton({ onFile }: { onFile: (file: File) => void }) {
  const microphone = useRef<Microphone | null>(null);
  const isStarting = useSignal(false);
  const seconds = useSignal<number | null>(null); // null: nothing is recorded
  const isGone = useRef(false);

  useEffect(
    () => () => {
      isGone.current = true;
      microphone.current?.cancel();
    },
    [],
  );

  const stop = async () => {
    const recorded = microphone.current;
    microphone.current = null;
    seconds.value = null;
    if (recorded === null) return;
    try {
      onFile(await recorded.stop());
    } catch (error) {
      toastError(error, "There is no recording");
    }
  };
  const start = async () => {
    isStarting.value = true;
    try {
      const started = await Microphone.start();
      if (isGone.current) return started.cancel();
      microphone.current = started;
      seconds.value = 0;
    } catch (error) {
      toastError(error, "There is no recording");
    } finally {
      isStarting.value = false;
    }
  };

  const isRecording = seconds.value !== null;
  useEffect(() => {
    if (!isRecording) return;
    const began = performance.now();
    const clock = setInterval(() => {
      seconds.value = Math.floor((performance.now() - began) / 1000);
      if (seconds.value >= LONGEST_S) void stop();
    }, 500);
    return () => clearInterval(clock);
  }, [isRecording]);

  if (seconds.value === null) {
    return (
      <IconButton icon={MicrophoneIcon} label="Record" busy={isStarting.value} onClick={() => void start()} />
    );
  }
  const [minutes, rest] = [Math.floor(seconds.value / 60), String(seconds.value % 60).padStart(2, "0")];
  return (
    <Button
      class="is-on"
      kind="quiet"
      icon={Stop}
      aria-label="End the recording"
      data-tip="End the recording"
      onClick={() => void stop()}
    >
      <span class="small recorded">
        {minutes}:{rest}
      </span>
    </Button>
  );
}
