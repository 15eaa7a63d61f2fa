import type { ComponentChildren, JSX } from "preact";

export type Icon = (props: { size?: number }) => JSX.Element;

/** An icon on a grid of 24, drawn in the colour of the text and hidden from screen readers. */
function icon(shapes: ComponentChildren): Icon {
  return ({ size = 18 }) => (
    <svg
      class="icon"
      width={size}
      height={size}
      viewBox="0 0 24 24"
      fill="none"
      stroke="currentColor"
      stroke-width="1.75"
      stroke-linecap="round"
      stroke-linejoin="round"
      aria-hidden="true"
      focusable="false"
    >
      {shapes}
    </svg>
  );
}

const path = (...lines: string[]) => icon(lines.map((line) => <path key={line} d={line} />));
const dot = (x: number, y: number, radius = 1.1) => (
  <circle cx={x} cy={y} r={radius} fill="currentColor" stroke="none" />
);

export const Plus = path("M12 5v14M5 12h14");
export const Minus = path("M5 12h14");
export const Close = path("M6 6l12 12M18 6 6 18");
export const Check = path("M5 12.5l4.5 4.5L19 7.5");
export const ChevronDown = path("M6 9.5l6 6 6-6");
export const ChevronUp = path("M6 14.5l6-6 6 6");
export const ChevronRight = path("M9.5 6l6 6-6 6");
export const ChevronLeft = path("M14.5 6l-6 6 6 6");
export const ArrowUp = path("M12 19V5M6 11l6-6 6 6");
export const ArrowDown = path("M12 5v14M6 13l6 6 6-6");
export const Menu = path("M4 7h16M4 12h16M4 17h16");
export const Sidebar = icon(
  <>
    <rect x="3.5" y="4.5" width="17" height="15" rx="3" />
    <path d="M9.5 4.5v15" />
  </>,
);
export const More = icon(
  <>
    {dot(5.5, 12, 1.5)}
    {dot(12, 12, 1.5)}
    {dot(18.5, 12, 1.5)}
  </>,
);
export const Search = icon(
  <>
    <circle cx="11" cy="11" r="6.5" />
    <path d="M16 16l4.5 4.5" />
  </>,
);
export const Compose = path(
  "M12 4.5H7A2.5 2.5 0 0 0 4.5 7v10A2.5 2.5 0 0 0 7 19.5h10a2.5 2.5 0 0 0 2.5-2.5v-5",
  "M10 14l.7-3.2L18.2 3.300a1.8 1.8 0 0 1 2.5 2.500L13.2 13.300z",
);
export const Edit = path(
  "M4.5 19.500l1-4.300L16 4.700a2.2 2.2 0 0 1 3.3 3.300L8.8 18.500z",
  "M14 6.700l3.3 3.3",
);
export const Trash = path(
  "M4.5 7h15M9.5 7V5.500A1.5 1.5 0 0 1 11 4h2a1.5 1.5 0 0 1 1.5 1.500V7",
  "M6.5 7l.7 11a2 2 0 0 0 2 2h5.600a2 2 0 0 0 2-2l.7-11",
  "M10 11v5M14 11v5",
);
export const Pin = path("M9 4h6l-.7 6 3.2 3.500H6.500L9.7 10z", "M12 13.500V20.5");
export const Unpin = path("M9 4h6l-.7 6 3.2 3.500H6.500L9.7 10z", "M12 13.500V20.5", "M4 4l16 16");
export const Folder = path(
  "M3.5 7.500a2 2 0 0 1 2-2h3.700l2.3 2.500h7a2 2 0 0 1 2 2v7a2 2 0 0 1-2 2h-13a2 2 0 0 1-2-2z",
);
export const Tag = icon(
  <>
    <path d="M4 5.500A1.5 1.5 0 0 1 5.5 4h6l8 8a1.6 1.6 0 0 1 0 2.300l-5.2 5.200a1.6 1.6 0 0 1-2.3 0l-8-8z" />
    {dot(8.3, 8.3, 1.3)}
  </>,
);
export const Download = path("M12 4v11M7 10.500l5 5 5-5M5 19.500h14");
export const Upload = path("M12 15.500v-11M7 9l5-5 5 5M5 19.500h14");
export const Copy = icon(
  <>
    <rect x="8.5" y="8.5" width="11" height="11.5" rx="2" />
    <path d="M15.5 8.500V6a2 2 0 0 0-2-2H6.500a2 2 0 0 0-2 2v7.500a2 2 0 0 0 2 2h2" />
  </>,
);
export const Wrap = path("M4 6.500h16M4 12h13a3 3 0 0 1 0 6h-4M15 15.500L12.5 18l2.5 2.500M4 18h5");
export const Code = path("M8.5 7.500L4 12l4.5 4.500M15.5 7.500L20 12l-4.5 4.5");
export const Terminal = icon(
  <>
    <rect x="3.5" y="4.5" width="17" height="15" rx="2.5" />
    <path d="M7.5 9.500l3 2.5-3 2.500M12.5 15h4" />
  </>,
);
export const Chat = path(
  "M4 6.500A2.5 2.5 0 0 1 6.5 4h11A2.5 2.5 0 0 1 20 6.500v8a2.5 2.5 0 0 1-2.5 2.500H11l-4.5 3.500V17A2.5 2.5 0 0 1 4 14.500z",
);
export const Cube = path(
  "M12 3.500l7.5 4.200v8.600L12 20.500l-7.5-4.200V7.700z",
  "M4.7 7.800L12 12l7.3-4.200M12 12v8.3",
);
export const Pulse = path("M3.5 12.500H7l2.5-7 4.5 13 2.5-6h4");
export const Sliders = icon(
  <>
    <path d="M4 7.500h9M17.5 7.500H20M4 16.500h2.500M11 16.500h9" />
    <circle cx="15.2" cy="7.5" r="2.2" />
    <circle cx="8.8" cy="16.5" r="2.2" />
  </>,
);
export const Gear = icon(
  <>
    <circle cx="12" cy="12" r="3" />
    <path d="M10.3 3.800h3.400l.5 2.4 1.5.9 2.4-.8 1.7 2.9-1.9 1.700v2.200l1.9 1.7-1.7 2.9-2.4-.8-1.5.9-.5 2.400h-3.400l-.5-2.4-1.5-.9-2.4.8-1.7-2.9 1.9-1.700v-2.200L4.2 9.200l1.7-2.9 2.4.8 1.5-.9z" />
  </>,
);
export const Sun = icon(
  <>
    <circle cx="12" cy="12" r="4" />
    <path d="M12 3v1.500M12 19.500V21M3 12h1.500M19.5 12H21M5.6 5.600l1.1 1.100M17.3 17.300l1.1 1.100M18.4 5.600l-1.1 1.100M6.7 17.300l-1.1 1.1" />
  </>,
);
export const Moon = path("M20 14.300A8.3 8.3 0 0 1 9.7 4 8.3 8.3 0 1 0 20 14.300z");
export const Monitor = icon(
  <>
    <rect x="3.5" y="4.5" width="17" height="12" rx="2" />
    <path d="M9 20h6M12 16.500V20" />
  </>,
);
export const Keyboard = icon(
  <>
    <rect x="2.8" y="6" width="18.4" height="12.5" rx="2.5" />
    <path d="M8.5 15h7" />
    {dot(6.8, 9.8)}
    {dot(10.3, 9.8)}
    {dot(13.7, 9.8)}
    {dot(17.2, 9.8)}
  </>,
);
export const Key = icon(
  <>
    <circle cx="8" cy="15.5" r="4" />
    <path d="M11 12.700l8.5-8.200M16 8l3 3M13.7 10.300l1.8 1.8" />
  </>,
);
export const SignOut = path("M10 4.500H6.500a2 2 0 0 0-2 2v11a2 2 0 0 0 2 2H10", "M15 8l4 4-4 4M19 12H9.5");
export const Send = path("M12 19.500v-14M6 11.500l6-6 6 6");
export const Stop = icon(
  <rect x="7" y="7" width="10" height="10" rx="2" fill="currentColor" stroke="none" />,
);
export const Play = icon(<path d="M8 5.500l11 6.5-11 6.500z" fill="currentColor" />);
export const Pause = icon(<path d="M9 6v12M15 6v12" stroke-width="2.5" />);
export const Refresh = path("M19.5 12a7.5 7.5 0 1 1-2.3-5.400L19.5 9", "M19.5 4.500V9H15");
export const Undo = path("M8.5 5L4.5 9l4 4", "M4.5 9H14a5.5 5.5 0 0 1 0 11h-4");
export const Attach = path(
  "M18.5 11l-7 7a4.6 4.6 0 0 1-6.5-6.500l7.7-7.700a3.1 3.1 0 0 1 4.4 4.400l-7.4 7.400a1.5 1.5 0 0 1-2.2-2.200l6.5-6.5",
);
export const Microphone = path(
  "M12 3.500a3 3 0 0 1 3 3v5a3 3 0 0 1-6 0v-5a3 3 0 0 1 3-3z",
  "M5.5 11.500a6.5 6.5 0 0 0 13 0M12 18v3",
);
export const Image = icon(
  <>
    <rect x="3.5" y="4.5" width="17" height="15" rx="2.5" />
    <circle cx="8.8" cy="9.5" r="1.6" />
    <path d="M4 17l4.8-4.5 3.2 2.8 3.7-4 4.8 4.9" />
  </>,
);
export const File = path(
  "M13.5 3.500H7.500a2 2 0 0 0-2 2v13a2 2 0 0 0 2 2h9a2 2 0 0 0 2-2V8.500z",
  "M13.5 3.500v5h5",
);
export const Bulb = path(
  "M9.3 16.500c-.2-1.3-.8-2-1.5-2.900a5.7 5.7 0 1 1 8.4 0c-.7.9-1.3 1.6-1.5 2.900z",
  "M10 20h4",
);
export const Tool = path(
  "M14.5 6.300a4.5 4.5 0 0 1 5.3-1.800l-2.7 2.7.3 2.4 2.4.3 2.7-2.700a4.5 4.5 0 0 1-6.1 5.300L9.2 19.700a2.2 2.2 0 0 1-3.2-3.200l7.2-7.200a4.5 4.5 0 0 1 1.3-3z",
);
export const Eye = icon(
  <>
    <path d="M3 12c2-4 5.2-6 9-6s7 2 9 6c-2 4-5.2 6-9 6s-7-2-9-6z" />
    <circle cx="12" cy="12" r="2.8" />
  </>,
);
export const Branch = icon(
  <>
    <circle cx="7" cy="6" r="2.2" />
    <circle cx="7" cy="18" r="2.2" />
    <circle cx="17" cy="8.5" r="2.2" />
    <path d="M7 8.200v7.600M17 10.700c0 3.3-5.5 2.8-8.9 5.5" />
  </>,
);
export const Columns = icon(
  <>
    <rect x="3.5" y="4.5" width="17" height="15" rx="2.5" />
    <path d="M12 4.500v15" />
  </>,
);
export const Grid = icon(
  <>
    <rect x="4" y="4" width="6.5" height="6.5" rx="1.5" />
    <rect x="13.5" y="4" width="6.5" height="6.5" rx="1.5" />
    <rect x="4" y="13.5" width="6.5" height="6.5" rx="1.5" />
    <rect x="13.5" y="13.5" width="6.5" height="6.5" rx="1.5" />
  </>,
);
export const Clock = icon(
  <>
    <circle cx="12" cy="12" r="8" />
    <path d="M12 7.500V12l3 2" />
  </>,
);
export const Memory = icon(
  <>
    <rect x="3.5" y="7.5" width="17" height="9" rx="1.5" />
    <path d="M7.5 16.500v3M12 16.500v3M16.5 16.500v3M8 10.500v3M12 10.500v3M16 10.500v3" />
  </>,
);
export const Info = icon(
  <>
    <circle cx="12" cy="12" r="8.5" />
    <path d="M12 11v5" />
    {dot(12, 8)}
  </>,
);
export const Warning = icon(
  <>
    <path d="M12 4.500l8.5 15h-17z" />
    <path d="M12 10v4.5" />
    {dot(12, 17)}
  </>,
);
export const Failure = icon(
  <>
    <circle cx="12" cy="12" r="8.5" />
    <path d="M12 7.500V13" />
    {dot(12, 16)}
  </>,
);
export const Success = icon(
  <>
    <circle cx="12" cy="12" r="8.5" />
    <path d="M8.5 12.300l2.4 2.4 4.6-5" />
  </>,
);
export const External = path(
  "M13.5 4.500h6v6M19.5 4.500L11 13",
  "M17.5 13.500v4a2 2 0 0 1-2 2h-9a2 2 0 0 1-2-2v-9a2 2 0 0 1 2-2h4",
);
export const Expand = path("M14 4.500h5.500V10M10 19.500H4.500V14M19.5 4.500L13.5 10.500M4.5 19.500l6-6");
export const Save = path(
  "M5 6.500A1.5 1.5 0 0 1 6.5 5H16l3 3v9.500a1.5 1.5 0 0 1-1.5 1.500h-11A1.5 1.5 0 0 1 5 17.500z",
  "M8.5 5v4.500h6V5M8 19v-5.500h8V19",
);
export const Offline = path(
  "M4 4l16 16",
  "M8.2 8.600A9 9 0 0 0 5 11M12 7a9 9 0 0 1 7 4M9.3 14.300a4.5 4.5 0 0 1 4.8-.5",
  "M12 18h.01",
);
export const Link = path(
  "M10.5 13.500a4 4 0 0 0 5.7 0l2.8-2.800a4 4 0 0 0-5.7-5.700l-1.2 1.2",
  "M13.5 10.500a4 4 0 0 0-5.7 0L5 13.300a4 4 0 0 0 5.7 5.700l1.2-1.2",
);
export const Filter = path("M4 6h16l-6.2 7.200V19l-3.6-2v-3.800z");
export const Unload = path("M12 15V4.500M7.5 9L12 4.5 16.5 9M5 19.500h14");
export const Bolt = path("M13 3.500L5.5 13.500H11l-1 7 7.5-10H12z");
export const Logo: Icon = ({ size = 24 }) => (
  <svg class="icon" width={size} height={size} viewBox="0 0 32 32" aria-hidden="true" focusable="false">
    <rect width="32" height="32" rx="9" fill="#1f6b48" />
    <path d="M5 22.500L12.2 11l4 6.2 3-4.2 7.8 9.500z" fill="#fff" />
    <circle cx="22.5" cy="9" r="2.5" fill="#f0c75e" />
  </svg>
);
